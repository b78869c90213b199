#include "lockstep/dist/rendezvous/token.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/dist/rendezvous/descriptor.h"
#include "lockstep/dist/rendezvous/socket.h"

namespace lockstep::dist {

namespace {

constexpr std::size_t least_file = 32, most_file = 4096;

Token hmac_of(std::span<const std::byte> key, std::span<const std::byte> message) {
  Token code;
  const auto* bytes = reinterpret_cast<const unsigned char*>(message.data());
  check<Error>(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), bytes, message.size(),
                    reinterpret_cast<unsigned char*>(code.data()), nullptr) != nullptr,
               "[token] HMAC-SHA256 of {} bytes failed", message.size());
  return code;
}

}  // namespace

Token random_token() {
  Token token;
  // Up to 256 bytes come whole (getrandom(2)).
  const ssize_t got = ::getrandom(token.data(), token.size(), 0);
  check<Error>(got == std::ssize(token), "[token] no random bytes: {}", system_message(errno));
  return token;
}

Token read_token(int descriptor) {
  Token token{};
  ssize_t got = 0;
  do got = ::pread(descriptor, token.data(), token.size(), 0);
  while (got < 0 && errno == EINTR);
  check<UsageError>(got == std::ssize(token),
                    "[rendezvous] LOCKSTEP_TOKEN_FD={}: expected {} bytes, got {}", descriptor,
                    token.size(), got < 0 ? system_message(errno) : std::to_string(got));
  return token;
}

Token token_of_file(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  check<UsageError>(static_cast<bool>(file), "[token] cannot read the secret file '{}': {}", path,
                    system_message(errno));
  struct stat status {};
  const bool known = ::fstat(file.get(), &status) == 0;
  check<UsageError>(known && (status.st_mode & 077) == 0,
                    "[token] the secret file '{}' has mode {:o}: others can use it (chmod 600)",
                    path, status.st_mode & 0777);
  std::vector<std::byte> bytes(most_file + 1);
  const ssize_t got = ::read(file.get(), bytes.data(), bytes.size());
  const auto size = static_cast<std::size_t>(std::max<ssize_t>(got, 0));
  check<UsageError>(size >= least_file && size <= most_file,
                    "[token] the secret file '{}' must have {} to {} bytes, got {}{}", path,
                    least_file, most_file, size == most_file + 1 ? "more than " : "",
                    std::min(size, most_file));
  constexpr std::string_view purpose = "lockstep secret file";
  return hmac_of(std::span(bytes).first(size), std::as_bytes(std::span(purpose)));
}

Token hmac(const Token& key, std::string_view purpose,
           std::initializer_list<std::span<const std::byte>> parts) {
  std::vector<std::byte> message;
  const auto append = [&](std::span<const std::byte> part) {
    message.insert(message.end(), part.begin(), part.end());
  };
  append(std::as_bytes(std::span(purpose)));
  for (const std::span<const std::byte> part : parts) append(part);
  return hmac_of(key, message);
}

bool same(const Token& a, const Token& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace lockstep::dist
