#pragma once
/// Messages over a connection: the rendezvous's and the launchers'.
///
///   | length u32 | kind u8 | tag of these 16 | bytes ... | tag of the bytes 16 |
///
/// Numbers are little-endian; tags: seal.h. Over a Unix socket a frame can carry a file descriptor.
/// A length is checked before memory is allocated for it.
///
/// Thread-safety: functions may be called from any thread, an object from one thread at a time.

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/dist/rendezvous/seal.h"

namespace lockstep::dist {

enum class FrameKind : std::uint8_t {
  gather = 'g',      ///< to rank 0: the name of the exchange, one rank's bytes
  everything = 'e',  ///< from rank 0: all ranks' bytes
  descriptor = 'd',  ///< from rank 0: the name of the exchange, with a file descriptor
  abort = 'x',       ///< the sender gives up: its reason
  leave = 'l',       ///< the sender ends its part in peace. No bytes
  stop = 's',        ///< between launchers: a rank has failed, end yours. No bytes
  result = 'v',      ///< between launchers: how ranks have ended
  beat = 'b',        ///< between launchers: the sender runs. Bytes: ranks there have parted
  event = 'n',       ///< to node 0's launcher, in a job that survives: what became of a rank
  order = 'o',       ///< from node 0's launcher, in such a job: what to do with a rank
};

struct Frame {
  FrameKind kind{};
  std::string body;
  Descriptor descriptor;
};

constexpr std::size_t frame_kind_at = 4, frame_head_bytes = 21;
constexpr std::size_t most_frame_bytes = std::size_t{16} << 20;

/// Puts frames together from a connection.
class FrameReader {
 public:
  enum class State { incomplete, complete, ended };

  /// Takes what has arrived, up to the end of one frame. A complete frame stays until take().
  /// Throws CommError for a frame that is longer than most_frame_bytes or was changed on the way;
  /// after that it has ended.
  State read(Connection& from);
  bool complete() const { return state_ == State::complete; }
  bool ended() const { return state_ == State::ended; }
  const Frame& peek() const { return frame_; }
  Frame take();

 private:
  std::span<std::byte> rest();
  std::ptrdiff_t receive(int socket, std::span<std::byte> bytes);
  void take_head(Connection& from);
  void check_body(Connection& from);

  std::array<std::byte, frame_head_bytes> head_{};
  std::size_t got_ = 0;  // bytes of the frame
  State state_ = State::incomplete;
  Frame frame_;  // its body ends with the tag until it is complete
};

/// Sends one frame, and `descriptor` with it unless that is -1. Throws CommError if it is too long.
Transfer send_frame(Connection& to, FrameKind kind, std::string_view body, const Deadline& deadline,
                    int descriptor = -1);

/// Several strings as one, and back. `unpack` throws CommError if `packed` is not what `pack` made.
std::string pack(const std::vector<std::string>& parts);
std::vector<std::string> unpack(std::string_view packed);

}  // namespace lockstep::dist
