#pragma once
/// A byte stream over a connection, in frames with tags (rendezvous/seal.h). TCP's own sum has 16
/// bits, and a network card or a switch that changes bytes makes a new sum for them; so a changed
/// gradient would be added up unnoticed. Somebody between two machines can change bytes on purpose.
///
///   | length u32 | tag of the bytes 16 | tag of these two 16 | bytes ... | length ...
///
/// Numbers are in the machine's own byte order. The last byte of a frame is not handed out before
/// the tag is found to be right.
///
/// Thread-safety: one thread at a time.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/dist/rendezvous/seal.h"

namespace lockstep::dist {

class CheckedStream {
 public:
  static constexpr std::size_t most_bytes = 512 * 1024;  ///< of a frame: it stays in the cache

  explicit CheckedStream(Connection connection) : connection_(std::move(connection)) {}

  const Descriptor& socket() const { return connection_.socket; }
  void close() { connection_.socket.close(); }
  /// As Transport::send, but `peer_closed` if the peer is gone.
  std::ptrdiff_t send(std::span<const std::byte> bytes);
  /// As Transport::receive, but `peer_closed` if the peer is gone. Throws CommError for bytes that
  /// were changed on the way.
  std::ptrdiff_t receive(std::span<std::byte> bytes);

 private:
  struct Head {
    std::uint32_t length = 0;
    Tag tag{}, own_tag{};
    Tag right_own_tag(Sealer& sealer, const Token& key) const;
  };
  void begin_frame(std::span<const std::byte> bytes);
  void read_head();
  void check_tag();
  std::size_t take(std::span<std::byte> bytes);
  std::size_t buffered() const { return end_ - begin_; }

  Connection connection_;
  Sealer whole_;  // for heads, and for the bytes of a frame that leaves
  Head leaving_;
  std::size_t head_left_ = 0, frame_left_ = 0;  // bytes that are still to be sent

  Head arriving_;
  std::size_t wanted_ = 0;  // bytes of the frame that have not arrived
  Sealer sealer_;           // of those that have
  // What was read ahead: a small frame comes with its head, by one call of the system.
  std::array<std::byte, 4096> buffer_;
  std::size_t begin_ = 0, end_ = 0;
};

}  // namespace lockstep::dist
