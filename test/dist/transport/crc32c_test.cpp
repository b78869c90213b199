#include "lockstep/dist/transport/tcp/crc32c.h"

#include <doctest/doctest.h>

#include <random>
#include <string_view>
#include <vector>

namespace lockstep::dist {
namespace {

using Sum = std::uint32_t (*)(std::span<const std::byte>, std::uint32_t);

/// Bit by bit, as the polynomial says (RFC 3720, section 12.1).
std::uint32_t by_definition(std::span<const std::byte> bytes) {
  std::uint32_t state = ~std::uint32_t{0};
  for (const std::byte byte : bytes) {
    state ^= static_cast<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) state = state >> 1 ^ (state & 1 ? 0x82f63b78u : 0u);
  }
  return ~state;
}

std::vector<std::byte> random_bytes(std::size_t count) {
  std::mt19937 random(static_cast<unsigned>(count));
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() & 0xff);
  return bytes;
}

TEST_CASE("crc32c: the examples of RFC 3720, appendix B.4") {
  // There the bytes of a sum are listed as they are sent, the lowest first.
  std::vector<std::byte> up(32), down(32);
  for (int k = 0; k < 32; ++k) up[k] = static_cast<std::byte>(k), down[31 - k] = up[k];
  std::vector<std::byte> command(48);  // an iSCSI SCSI Read (10) command PDU
  for (const auto& [at, value] : {std::pair{0, 0x01},
                                  {1, 0xc0},
                                  {16, 0x14},
                                  {22, 0x04},
                                  {27, 0x14},
                                  {31, 0x18},
                                  {32, 0x28},
                                  {40, 0x02}})
    command[static_cast<std::size_t>(at)] = static_cast<std::byte>(value);
  for (const Sum sum : {Sum(crc32c), Sum(crc32c_by_tables)}) {
    CHECK(sum(std::vector<std::byte>(32, std::byte{0x00}), 0) == 0x8a9136aa);
    CHECK(sum(std::vector<std::byte>(32, std::byte{0xff}), 0) == 0x62a8ab43);
    CHECK(sum(up, 0) == 0x46dd794e);
    CHECK(sum(down, 0) == 0x113fdb5c);
    CHECK(sum(command, 0) == 0xd9963a56);
    CHECK(sum(std::as_bytes(std::span(std::string_view("123456789"))), 0) == 0xe3069283);
    CHECK(sum({}, 0) == 0);
  }
}

TEST_CASE("crc32c: any length, at any address, in any pieces") {
  for (const std::size_t count : {1, 7, 8, 9, 100, 1023, 1024, 3071, 3072, 3073, 6144, 10'007}) {
    const std::vector<std::byte> bytes = random_bytes(count);
    const std::span<const std::byte> all(bytes);
    for (const Sum sum : {Sum(crc32c), Sum(crc32c_by_tables)}) {
      CAPTURE(count);
      CHECK(sum(all, 0) == by_definition(all));
      CHECK(sum(all.subspan(1), 0) == by_definition(all.subspan(1)));
      const std::size_t cut = count / 3;
      CHECK(sum(all.subspan(cut), sum(all.first(cut), 0)) == by_definition(all));
    }
  }
}

TEST_CASE("crc32c: every flipped bit changes the sum") {
  std::vector<std::byte> bytes = random_bytes(4000);
  const std::uint32_t right = crc32c(bytes);
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] ^= std::byte{1} << bit % 8;
    if (crc32c(bytes) == right) FAIL("bit ", bit);
    bytes[bit / 8] ^= std::byte{1} << bit % 8;
  }
}

}  // namespace
}  // namespace lockstep::dist
