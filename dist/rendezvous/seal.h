#pragma once
/// How what is sent over a connection is sealed: each piece has a tag that only who has the key can
/// make. Keys and tags are those of RFC 8439: ChaCha20 makes a key for each piece from the key of
/// the connection, and Poly1305 the tag from that key and the bytes.
///
///   key of one direction --ChaCha20--> | key 0 | key 1 | key 2 | ...    one for each piece, in
///                                                                       the order of sending
///
/// Therefore a piece that is changed, left out, sent twice or in another place has a wrong tag.
/// Poly1305 is computed here: pieces are small, or have been shortened (frame_seal.h), and a tag of
/// 64 bytes takes 30 ns where OpenSSL 3.0 takes 70 (a core of an EPYC, Zen 3).
///
/// Thread-safety: functions may be called from any thread, an object from one thread at a time.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "lockstep/dist/rendezvous/socket.h"

namespace lockstep::dist {

using Token = std::array<std::byte, 32>;
using Tag = std::array<std::byte, 16>;

/// The keys of the pieces of one direction, each good for one.
class KeyStream {
 public:
  KeyStream() = default;  ///< of a key that everybody knows: seals against accidents alone
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

/// Poly1305 of one piece after the other. The time that it takes does not depend on the bytes.
class Sealer {
 public:
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
  /// Blocks of 16 bytes, each with `above` as a further byte.
  void take(std::span<const std::byte> blocks, std::uint64_t above);

  // Numbers of 64-bit digits, the lowest first.
  std::array<std::uint64_t, 2> factor_{}, last_{};  // the halves of the key
  std::array<std::uint64_t, 3> sum_{};              // below 2^131
  std::array<std::byte, 16> block_{};
  std::size_t pending_ = 0;  // bytes of the block that is not complete
};

/// The same by a Sealer of its own: for rare pieces, and at the end of a process.
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
