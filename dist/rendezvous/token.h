#pragma once
/// Secrets of 32 bytes, and proofs of knowing one that do not give it away.

#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::dist {

using Token = std::array<std::byte, 32>;

/// 32 fresh random bytes: a secret, or a number used once (nonce).
Token random_token();

/// The token in an inherited descriptor (it is read at offset 0, since all ranks share one
/// position). Throws UsageError if there are not 32 bytes.
Token read_token(int descriptor);

/// The token that a file's bytes stand for, the same on every machine that has them. Throws
/// UsageError, naming the file, if it cannot be read, is open to other users (mode & 077) or has
/// less than 32 or more than 4096 bytes.
Token token_of_file(const std::string& path);

/// HMAC-SHA256 (RFC 2104) of the purpose and then the parts, with the key. Whoever has the key can
/// compute it, nobody else can tell it from random bytes.
Token hmac(const Token& key, std::string_view purpose,
           std::initializer_list<std::span<const std::byte>> parts);

/// Compares in a time that does not tell where they differ.
bool same(const Token& a, const Token& b);

}  // namespace lockstep::dist
