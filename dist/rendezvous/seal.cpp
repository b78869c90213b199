#include "lockstep/dist/rendezvous/seal.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>

namespace lockstep::dist {
namespace {

unsigned char* raw(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }
const unsigned char* raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

/// ChaCha20's bytes for this key and number.
void fill_from(const Token& key, std::uint64_t number, std::span<std::byte> bytes) {
  static EVP_CIPHER* const cipher = EVP_CIPHER_fetch(nullptr, "ChaCha20", nullptr);
  const std::unique_ptr<EVP_CIPHER_CTX, decltype(&EVP_CIPHER_CTX_free)> context(
      EVP_CIPHER_CTX_new(), &EVP_CIPHER_CTX_free);
  std::array<unsigned char, 16> start{};  // the block's number (0), then the nonce
  std::memcpy(start.data() + 8, &number, sizeof number);
  std::memset(bytes.data(), 0, bytes.size());
  int done = 0;
  const bool made =
      cipher && context &&
      EVP_EncryptInit_ex2(context.get(), cipher, raw(key.data()), start.data(), nullptr) &&
      EVP_EncryptUpdate(context.get(), raw(bytes.data()), &done, raw(bytes.data()),
                        static_cast<int>(bytes.size()));
  check<Error>(made && done == static_cast<int>(bytes.size()),
               "[seal] OpenSSL does not do ChaCha20");
}

__extension__ using Wide = unsigned __int128;
std::uint64_t low(Wide number) { return static_cast<std::uint64_t>(number); }
std::uint64_t high(Wide number) { return static_cast<std::uint64_t>(number >> 64); }
/// Adds a digit to another; what is carried to the next.
std::uint64_t add_to(std::uint64_t& digit, std::uint64_t other) {
  return __builtin_add_overflow(digit, other, &digit) ? 1 : 0;
}

}  // namespace

Token KeyStream::next() {
  if (used_ == keys_.size()) {
    fill_from(key_, batch_++, std::as_writable_bytes(std::span(keys_)));
    used_ = 0;
  }
  return keys_[used_++];
}

void KeyStream::fill(std::span<std::byte> bytes) const {
  fill_from(key_, ~std::uint64_t{0}, bytes);  // no batch has that number
}

static_assert(std::endian::native == std::endian::little, "as RFC 8439 reads numbers");

void Sealer::begin(const Token& key) {
  std::memcpy(&factor_, key.data(), sizeof factor_);
  std::memcpy(&last_, key.data() + sizeof factor_, sizeof last_);
  factor_[0] &= 0x0ffffffc0fffffff;
  factor_[1] &= 0x0ffffffc0ffffffc;
  sum_ = {};
  pending_ = 0;
}

void Sealer::add(std::span<const std::byte> bytes) {
  if (pending_ > 0) {
    const std::size_t count = std::min(bytes.size(), block_.size() - pending_);
    std::copy_n(bytes.begin(), count, block_.begin() + static_cast<std::ptrdiff_t>(pending_));
    bytes = bytes.subspan(count);
    pending_ += count;
    if (pending_ < block_.size()) return;
    take(block_, 1);
  }
  pending_ = bytes.size() % block_.size();
  take(bytes.first(bytes.size() - pending_), 1);
  std::ranges::copy(bytes.last(pending_), block_.begin());
}

/// sum = (sum + block) factor mod 2^130 - 5, for each block. The digits of the factor have zeros at
/// the top, so no sum of products overflows; its second one is a multiple of 4, so that what passes
/// 2^128 comes back at the bottom, 5/4 of it.
void Sealer::take(std::span<const std::byte> blocks, std::uint64_t above) {
  auto [a, b, c] = sum_;
  const auto [r, s] = factor_;
  const std::uint64_t back = s + (s >> 2);
  for (; !blocks.empty(); blocks = blocks.subspan(block_.size())) {
    std::array<std::uint64_t, 2> block;
    std::memcpy(&block, blocks.data(), sizeof block);
    c += above + add_to(b, add_to(a, block[0]));
    c += add_to(b, block[1]);

    const Wide first = Wide{a} * r + Wide{b} * back, second = Wide{a} * s + Wide{b} * r;
    a = low(first), b = low(second);
    std::uint64_t top = c * r + high(second) + add_to(b, c * back);
    top += add_to(b, high(first));

    const std::uint64_t passed = (top >> 2) + (top & ~std::uint64_t{3});  // 2^130 is 5
    c = (top & 3) + add_to(b, add_to(a, passed));
  }
  sum_ = {a, b, c};
}

Tag Sealer::tag() {
  if (pending_ > 0) {
    block_[pending_++] = std::byte{1};
    std::fill(block_.begin() + static_cast<std::ptrdiff_t>(pending_), block_.end(), std::byte{0});
    take(block_, 0);
  }
  // A sum of 2^130 - 5 or more passes 2^130 with 5 more: then those digits are the remainder.
  const auto [a, b, c] = sum_;
  std::uint64_t x = a, y = b;
  const std::uint64_t passes = 0 - ((c + add_to(y, add_to(x, 5))) >> 2);  // all bits, or none
  x = (x & passes) | (a & ~passes);
  y = (y & passes) | (b & ~passes);
  y += last_[1] + add_to(x, last_[0]);
  return std::bit_cast<Tag>(std::array{x, y});
}

Tag seal(const Token& key, std::span<const std::byte> bytes) { return Sealer().seal(key, bytes); }

bool same(const Token& a, const Token& b) { return CRYPTO_memcmp(&a, &b, sizeof a) == 0; }
bool same(const Tag& a, const Tag& b) { return CRYPTO_memcmp(&a, &b, sizeof a) == 0; }

std::string hex(const Tag& tag) {
  std::string text;
  for (const std::byte byte : tag) text += fmt::format("{:02x}", static_cast<int>(byte));
  return text;
}

}  // namespace lockstep::dist
