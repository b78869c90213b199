#include "lockstep/dist/rendezvous/seal.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <random>
#include <set>
#include <vector>

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

TEST_CASE("seal: Poly1305 where numbers wrap round, RFC 8439, appendix A.3 (7 to 11)") {
  const auto block = [](int first, int rest) {
    std::array<std::byte, 16> bytes;
    bytes.fill(std::byte(rest));
    bytes[0] = std::byte(first);
    return bytes;
  };
  using Block = decltype(block(0, 0));
  const auto tag = [](const Block& factor, const Block& last, const std::vector<Block>& text) {
    Token key;
    std::ranges::copy(last, std::ranges::copy(factor, key.begin()).out);
    return hex(seal(key, std::as_bytes(std::span(text))));
  };
  const Block none = block(0, 0), one = block(1, 0), two = block(2, 0), all = block(255, 255);
  const std::string zeros(30, '0');
  CHECK(tag(two, none, {all}) == "03" + zeros);
  CHECK(tag(two, all, {two}) == "03" + zeros);
  CHECK(tag(one, none, {all, block(0xf0, 255), block(0x11, 0)}) == "05" + zeros);
  CHECK(tag(one, none, {all, block(0xfb, 0xfe), block(1, 1)}) == "00" + zeros);
  CHECK(tag(two, none, {block(0xfd, 255)}) == "fa" + std::string(30, 'f'));
}

/// Poly1305 as RFC 8439 defines it, digit by digit: numbers are bytes, the lowest first.
std::string plain_poly1305(Token key, std::span<const std::byte> text) {
  for (const std::size_t at : {3, 7, 11, 15}) key[at] &= std::byte{0x0f};
  for (const std::size_t at : {4, 8, 12}) key[at] &= std::byte{0xfc};
  using Number = std::array<std::uint32_t, 17>;  // below 2^136
  const auto reduce = [](auto number) {          // mod 2^130 - 5
    for (int round = 0; round < 3; ++round) {
      std::array<std::uint32_t, 40> next{};
      for (std::size_t i = 0; i < number.size(); ++i) {
        const std::uint32_t low = i == 16 ? number[i] & 3 : i < 16 ? number[i] : 0;
        if (i < 17) next[i] += low;
        // The digit i has 256^i; 2^130 is 5, so what is above has 5 * 64 * 256^(i - 17).
        const std::uint32_t above = i == 16 ? (number[i] >> 2) * 5 : i > 16 ? number[i] * 320 : 0;
        if (above > 0) next[i == 16 ? 0 : i - 17] += above;
      }
      for (std::size_t i = 0; i + 1 < next.size(); ++i) next[i + 1] += next[i] >> 8, next[i] &= 255;
      std::copy_n(next.begin(), number.size(), number.begin());
    }
    Number result;
    std::copy_n(number.begin(), result.size(), result.begin());
    return result;
  };
  Number sum{};
  for (; !text.empty(); text = text.subspan(std::min<std::size_t>(16, text.size()))) {
    const std::size_t size = std::min<std::size_t>(16, text.size());
    for (std::size_t i = 0; i < size; ++i) sum[i] += static_cast<std::uint32_t>(text[i]);
    sum[size] += 1;
    std::array<std::uint32_t, 34> product{};
    for (std::size_t i = 0; i < sum.size(); ++i)
      for (std::size_t j = 0; j < 16; ++j)
        product[i + j] += sum[i] * static_cast<std::uint32_t>(key[j]);
    for (std::size_t i = 0; i + 1 < product.size(); ++i)
      product[i + 1] += product[i] >> 8, product[i] &= 255;
    sum = reduce(product);
  }
  Number less = sum;  // than 2^130 - 5: with 5 more it passes 2^130
  less[0] += 5;
  for (std::size_t i = 0; i + 1 < less.size(); ++i) less[i + 1] += less[i] >> 8, less[i] &= 255;
  if (less[16] >= 4) sum = less;
  std::uint32_t carried = 0;
  Tag tag;
  for (std::size_t i = 0; i < tag.size(); ++i) {
    carried += sum[i] + static_cast<std::uint32_t>(key[16 + i]);
    tag[i] = std::byte(carried & 255);
    carried >>= 8;
  }
  return hex(tag);
}

TEST_CASE("seal: Poly1305 of pieces of every size, cut anywhere, of all keys") {
  std::mt19937 random(39);
  Sealer sealer;
  for (int attempt = 0; attempt < 600; ++attempt) {
    // Random bits, or all bits set, or none, in the key and in the piece.
    const auto byte = [&random](int kind) {
      return std::byte(kind == 0 ? 255 : kind == 1 ? 0 : random() & 255);
    };
    Token key;
    for (std::byte& b : key) b = byte(attempt % 5);
    std::vector<std::byte> piece(random() % 100);
    for (std::byte& b : piece) b = byte(attempt / 5 % 5);
    sealer.begin(key);
    for (std::size_t at = 0; at < piece.size();) {
      const std::size_t count = std::min<std::size_t>(piece.size() - at, random() % 40);
      sealer.add(std::span(piece).subspan(at, count));
      at += count;
    }
    CHECK(hex(sealer.tag()) == plain_poly1305(key, piece));
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
