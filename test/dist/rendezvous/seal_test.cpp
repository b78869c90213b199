#include "lockstep/dist/rendezvous/seal.h"

#include <doctest/doctest.h>

#include <bit>
#include <cstring>
#include <set>

namespace lockstep::dist {
namespace {

std::span<const std::byte> bytes_in(std::string_view text) {
  return std::as_bytes(std::span(text));
}

TEST_CASE("seal: Poly1305, the example of RFC 8439, section 2.5.2") {
  constexpr std::array<unsigned char, 32> numbers{0x85, 0xd6, 0xbe, 0x78, 0x57, 0x55, 0x6d, 0x33,
                                                  0x7f, 0x44, 0x52, 0xfe, 0x42, 0xd5, 0x06, 0xa8,
                                                  0x01, 0x03, 0x80, 0x8a, 0xfb, 0x0d, 0xb2, 0xfd,
                                                  0x4a, 0xbf, 0xf6, 0xaf, 0x41, 0x49, 0xf5, 0x1b};
  Token key;
  for (std::size_t i = 0; i < key.size(); ++i) key[i] = std::byte{numbers[i]};
  const std::string_view text = "Cryptographic Forum Research Group";
  CHECK(hex(seal(key, bytes_in(text))) == "a8061dc1305136c6c22b8baf0c0127a9");
  Sealer sealer;
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {  // in pieces
    sealer.begin(key);
    sealer.add(bytes_in(text.substr(0, cut)));
    sealer.add(bytes_in(text.substr(cut)));
    CHECK(hex(sealer.tag()) == "a8061dc1305136c6c22b8baf0c0127a9");
  }
}

TEST_CASE("seal: keys are ChaCha20's, the first two of RFC 8439, appendix A.1 (key 0)") {
  KeyStream keys;  // block 0 of the nonce 0 has 64 bytes
  const Token first = keys.next(), second = keys.next();
  const auto half = [](const Token& key, std::size_t at) {
    Tag tag;
    std::copy_n(key.begin() + static_cast<std::ptrdiff_t>(at), tag.size(), tag.begin());
    return hex(tag);
  };
  CHECK(half(first, 0) == "76b8e0ada0f13d90405d6ae55386bd28");
  CHECK(half(first, 16) == "bdd219b8a08ded1aa836efcc8b770dc7");
  CHECK(half(second, 0) == "da41597c5157488d7724e03fb8d84a37");
  CHECK(half(second, 16) == "6a43b8f41518a11cc387b669b2ee6586");
}

TEST_CASE("seal: no key comes twice, and another key gives others") {
  Token other{};
  other[31] = std::byte{1};
  KeyStream one, same_as_one, two(other);
  std::set<Token> seen;
  for (int i = 0; i < 1000; ++i) {
    const Token key = one.next();
    CHECK(key == same_as_one.next());
    CHECK(seen.insert(key).second);
    CHECK(seen.insert(two.next()).second);
  }
}

/// ChaCha20's block of RFC 8439, section 2.3, as it is written there; its nonce ends with `number`.
std::array<std::uint32_t, 16> chacha20(const Token& key, std::uint32_t block,
                                       std::uint64_t number) {
  std::array<std::uint32_t, 16> start{0x61707865, 0x3320646e, 0x79622d32, 0x6b206574};
  std::memcpy(&start[4], key.data(), key.size());
  start[12] = block;
  std::memcpy(&start[14], &number, sizeof number);
  std::array<std::uint32_t, 16> s = start;
  const auto quarter_round = [&](std::size_t a, std::size_t b, std::size_t c, std::size_t d) {
    s[a] += s[b], s[d] = std::rotl(s[d] ^ s[a], 16);
    s[c] += s[d], s[b] = std::rotl(s[b] ^ s[c], 12);
    s[a] += s[b], s[d] = std::rotl(s[d] ^ s[a], 8);
    s[c] += s[d], s[b] = std::rotl(s[b] ^ s[c], 7);
  };
  for (int round = 0; round < 10; ++round) {
    for (std::size_t i = 0; i < 4; ++i) quarter_round(i, 4 + i, 8 + i, 12 + i);
    for (std::size_t i = 0; i < 4; ++i)
      quarter_round(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4);
  }
  for (std::size_t i = 0; i < s.size(); ++i) s[i] += start[i];
  return s;
}

TEST_CASE("seal: every key is ChaCha20's, in the batches that follow too") {
  for (const int last : {0, 7}) {
    Token own{};
    own[31] = std::byte(last);
    KeyStream keys(own);
    for (std::uint64_t batch = 0; batch < 5; ++batch)
      for (std::uint32_t block = 0; block < 32; ++block) {  // two keys each
        const auto words = chacha20(own, block, batch);
        for (const std::size_t half : {0, 8}) {
          const Token key = keys.next();
          CHECK(std::memcmp(key.data(), &words[half], key.size()) == 0);
        }
      }
  }
}

TEST_CASE("seal: what lasts as long as a stream is none of its keys") {
  Token key{};
  for (const int number : {0, 1, 255}) {
    key[7] = std::byte(number);
    KeyStream stream(key);
    std::array<Token, 40> lasting;
    stream.fill(std::as_writable_bytes(std::span(lasting)));
    std::set<Token> seen(lasting.begin(), lasting.end());
    CHECK(seen.size() == lasting.size());
    for (int i = 0; i < 1000; ++i) CHECK(seen.insert(stream.next()).second);
    std::array<Token, 40> again;
    stream.fill(std::as_writable_bytes(std::span(again)));
    CHECK(again == lasting);
  }
}

TEST_CASE("seal: tags and tokens are the same only if every bit is") {
  const auto check_bits = []<class T>(const T& like) {
    CHECK(same(like, like));
    for (std::size_t i = 0; i < like.size(); ++i)
      for (int bit = 0; bit < 8; ++bit) {
        T other = like;
        other[i] ^= std::byte(1 << bit);
        CHECK_FALSE(same(like, other));
        CHECK_FALSE(same(other, like));
      }
  };
  check_bits(Tag{std::byte{3}});
  check_bits(Token{std::byte{3}});
}

}  // namespace
}  // namespace lockstep::dist
