#include "lockstep/dist/rendezvous/seal.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <cstring>

namespace lockstep::dist {
namespace {

constexpr std::size_t tag_bytes = sizeof(Tag);

unsigned char* raw(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }
const unsigned char* raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

void check_openssl(bool done, const char* what) {
  check<Error>(done, "[seal] OpenSSL does not do {}", what);
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
  check_openssl(made && done == static_cast<int>(bytes.size()), "ChaCha20");
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

void Sealer::Free::operator()(evp_mac_ctx_st* context) const { EVP_MAC_CTX_free(context); }

Sealer::Sealer() {
  static EVP_MAC* const algorithm = EVP_MAC_fetch(nullptr, "POLY1305", nullptr);
  if (algorithm) context_.reset(EVP_MAC_CTX_new(algorithm));
  check_openssl(context_ != nullptr, "Poly1305");
}

void Sealer::begin(const Token& key) {
  check_openssl(EVP_MAC_init(context_.get(), raw(key.data()), key.size(), nullptr), "Poly1305");
}

void Sealer::add(std::span<const std::byte> bytes) {
  check_openssl(EVP_MAC_update(context_.get(), raw(bytes.data()), bytes.size()), "Poly1305");
}

Tag Sealer::tag() {
  Tag tag;
  std::size_t size = 0;
  const bool made = EVP_MAC_final(context_.get(), raw(tag.data()), &size, tag.size());
  check_openssl(made && size == tag_bytes, "Poly1305");
  return tag;
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
