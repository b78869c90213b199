#pragma once
/// A byte stream over a connection, in frames with tags (frame_seal.h). TCP's own sum has 16
/// bits, and a network card or a switch that changes bytes makes a new sum for them; so a changed
/// gradient would be added up unnoticed. An attacker between two machines can change bytes on
/// purpose.
///
///   | length u32 | zeros 28 | tag of the bytes 16 | tag of all this 16 | bytes ... | length ...
///
/// A head has 64 bytes, as what tensors are aligned to: to an address that lies less than 64 bytes
/// further on in its page than the source in its own, a core of an EPYC (Zen 3) copies at half of
/// the speed (rep movsb), and the kernel begins each message on a new page.
/// Numbers are in the machine's own byte order. The last byte of a frame is not handed out before
/// the tag is found to be right. What has not been handed out may lie in the caller's memory.
///
/// Two pieces are two frames, which one call of the system sends, and one receives: the second
/// frame lands where the caller wants it, and a piece that says what comes is known to be right
/// before anything is made of what comes.
///
///   | head | first piece | head | second piece | read ahead: the next head, a small frame ... |
///
/// Thread-safety: one thread at a time.

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "lockstep/dist/transport/tcp/frame_seal.h"

namespace lockstep::dist {

class CheckedStream {
 public:
  static constexpr std::size_t most_bytes = 512 * 1024;  ///< of a frame: it stays in the cache

  explicit CheckedStream(Connection connection)
      : connection_(std::move(connection)),
        sealer_(connection_.sending),
        checker_(connection_.receiving) {}

  const Descriptor& socket() const { return connection_.socket; }
  void close() { connection_.socket.close(); }
  /// As Transport::send_both, but `peer_closed` if the peer is gone.
  std::ptrdiff_t send(std::span<const std::byte> first, std::span<const std::byte> second = {});
  /// As Transport::receive_both, but `peer_closed` if the peer is gone. Throws CommError for bytes
  /// that were changed on the way.
  std::ptrdiff_t receive(std::span<std::byte> first, std::span<std::byte> second = {});

 private:
  struct Head {
    std::uint32_t length = 0;
    std::array<std::byte, 28> zeros{};
    Tag tag{}, own_tag{};
  };
  static_assert(sizeof(Head) == 64);
  struct Leaving {
    Head head;
    std::size_t head_left = 0, left = 0;  // bytes that are still to be sent
  };
  // What a call of the system brought, if not bytes for the caller: bytes read ahead.
  static constexpr std::ptrdiff_t nothing_yet = -2;
  static constexpr std::size_t few_bytes = 1024, ahead_bytes = 4096;

  Leaving seal(std::span<const std::byte> bytes);
  std::ptrdiff_t send_together(std::span<std::span<const std::byte>> pieces);
  std::ptrdiff_t receive_frames(std::span<std::byte> first, std::span<std::byte> second);
  std::ptrdiff_t receive_more(std::span<std::byte> bytes);
  std::ptrdiff_t receive_ahead();
  void check_head();
  void check(std::span<const std::byte> bytes);
  std::size_t take(std::span<std::byte> bytes);
  void keep_ahead(std::initializer_list<std::span<const std::byte>> pieces);
  std::size_t buffered() const { return end_ - begin_; }
  /// Where to read ahead behind so many bytes. Behind many, where a large frame may follow, nothing
  /// is read: its beginning would be copied once more, and its rest would begin at an address that
  /// is no multiple of 64, to which the system copies at two thirds of the speed.
  std::span<std::byte> behind(std::size_t bytes) {
    return bytes <= ahead_bytes ? std::span(ahead_) : std::span<std::byte>{};
  }

  Connection connection_;
  FrameSealer sealer_;
  std::array<Leaving, 2> leaving_;

  FrameSealer checker_;
  Head arriving_;
  std::size_t wanted_ = 0;  // bytes of the frame that have not been handed out
  // What was read ahead: [begin_, end_).
  std::vector<std::byte> ahead_ = std::vector<std::byte>(ahead_bytes);
  std::size_t begin_ = 0, end_ = 0;
};

}  // namespace lockstep::dist
