#include "lockstep/core/digest.h"

#include <doctest/doctest.h>

#include <string_view>

namespace lockstep {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// The examples that NIST publishes with FIPS 180-4.
TEST_CASE("digest: SHA-256 of published messages") {
  CHECK(Digest::hex(Digest().add(bytes_of("abc")).value()) ==
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(Digest::hex(Digest().value()) ==
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(Digest::hex(Digest()
                        .add(bytes_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"))
                        .value()) ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST_CASE("digest: the pieces in which bytes are added do not matter") {
  Digest whole, pieces;
  whole.add(bytes_of("replica")).add({});
  for (char c : std::string_view("replica")) pieces.add(bytes_of({&c, 1}));
  CHECK(whole.value() == pieces.value());
}

}  // namespace
}  // namespace lockstep
