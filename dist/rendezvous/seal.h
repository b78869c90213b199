#pragma once
/// How data on a connection is sealed: each piece has a tag that cannot be made without the key.
/// Keys and tags are those of RFC 8439: ChaCha20 makes a key for each piece from the key of the
/// connection, and Poly1305 the tag from that key and the bytes.
///
///   key of one direction --ChaCha20--> | key 0 | key 1 | key 2 | ...    one for each piece, in
///                                                                       the order of sending
///
/// Therefore a piece that is changed, left out, sent twice or in another place has a wrong tag.
/// Chosen by speed: 15 GB/s and 60 ns for a small piece on a core of an EPYC, where AES-GMAC had
/// 2 to 10 GB/s and 130 ns, BLAKE2 0.3 GB/s (OpenSSL 3.0).
///
/// Thread-safety: functions may be called from any thread, an object from one thread at a time.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "lockstep/dist/rendezvous/socket.h"

struct evp_mac_ctx_st;  // OpenSSL's

namespace lockstep::dist {

using Token = std::array<std::byte, 32>;
using Tag = std::array<std::byte, 16>;

/// The keys of the pieces of one direction, each good for one.
class KeyStream {
 public:
  KeyStream() = default;  ///< of a key that is no secret: seals against accidents alone
  explicit KeyStream(const Token& key) : key_(key) {}
  Token next();
  /// Fills `bytes` with what belongs to none of these keys: for what lasts as long as the stream.
  void fill(std::span<std::byte> bytes) const;

 private:
  Token key_{};
  std::uint64_t batch_ = 0;
  std::array<Token, 64> keys_{};
  std::size_t used_ = keys_.size();  // of keys_: none are left
};

/// Poly1305 of one piece after the other.
class Sealer {
 public:
  Sealer();
  void begin(const Token& key);
  void add(std::span<const std::byte> bytes);
  Tag tag();  ///< of what was added; begin() then begins the next piece
  /// The tag of a whole piece.
  Tag seal(const Token& key, std::span<const std::byte> bytes) {
    begin(key);
    add(bytes);
    return tag();
  }

 private:
  struct Free {
    void operator()(evp_mac_ctx_st* context) const;
  };
  std::unique_ptr<evp_mac_ctx_st, Free> context_;
};

/// The same by a new Sealer: for rare pieces, and at the end of a process.
Tag seal(const Token& key, std::span<const std::byte> bytes);

/// Both compare in a time that does not tell where they differ.
bool same(const Token& a, const Token& b);
bool same(const Tag& a, const Tag& b);

std::string hex(const Tag& tag);  ///< for errors

/// A connection whose other end has proved that it belongs to the job, with keys that only the two
/// ends know if the job has a secret.
struct Connection {
  Descriptor socket{};
  KeyStream sending{}, receiving{};

  explicit operator bool() const { return bool(socket); }
  int get() const { return socket.get(); }
};

}  // namespace lockstep::dist
