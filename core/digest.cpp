#include "lockstep/core/digest.h"

#include <openssl/evp.h>

#include <algorithm>

#include "lockstep/core/error.h"
#include "lockstep/core/system/progress.h"

namespace lockstep {

struct Digest::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

Digest::Digest() : state_(std::make_unique<State>()) {
  check<Error>(EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) == 1,
               "[digest] SHA-256 is not available");
}
Digest::Digest(Digest&&) noexcept = default;
Digest::~Digest() = default;

Digest& Digest::add(std::span<const std::byte> bytes) {
  constexpr std::size_t most = std::size_t{4} << 20;
  do {
    const auto part = bytes.first(std::min(most, bytes.size()));
    check<Error>(EVP_DigestUpdate(state_->context, part.data(), part.size()) == 1,
                 "[digest] SHA-256 failed after its end");
    bytes = bytes.subspan(part.size());
    Progress::note();
  } while (!bytes.empty());
  return *this;
}

Digest::Value Digest::value() {
  Value value;
  check<Error>(EVP_DigestFinal_ex(state_->context, reinterpret_cast<unsigned char*>(value.data()),
                                  nullptr) == 1,
               "[digest] SHA-256 failed");
  return value;
}

std::string Digest::hex(const Value& value) {
  std::string text;
  for (std::byte byte : value) text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return text;
}

}  // namespace lockstep
