#pragma once
/// Frames of the rendezvous: length (u32, little-endian), kind (one byte), that many bytes; over a Unix
/// socket perhaps with a file descriptor. Lengths are checked before anything is allocated.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/dist/rendezvous/socket.h"

namespace lockstep::dist {

constexpr std::size_t most_frame_bytes = std::size_t{16} << 20;

enum class FrameKind : std::uint8_t {
  gather = 'g',      ///< to rank 0: what the exchange is called, one rank's bytes
  everything = 'e',  ///< from rank 0: all ranks' bytes
  descriptor = 'd',  ///< from rank 0: what the exchange is called, with a file descriptor
  abort = 'x',       ///< the sender gives up: its reason
  // Between launchers (nodes.h):
  stop = 's',    ///< a rank has failed: no bytes
  result = 'v',  ///< how ranks have ended
};

struct Frame {
  FrameKind kind{};
  std::string body;
  Descriptor descriptor;
};

/// Puts frames together from a non-blocking socket.
class FrameReader {
 public:
  enum class State { incomplete, complete, ended };

  /// Takes what has arrived, up to the end of one frame; a complete one stays until take(). Throws
  /// CommError for a frame that is longer than most_frame_bytes.
  State read(int socket);
  bool complete() const { return state_ == State::complete; }
  const Frame& peek() const { return frame_; }
  Frame take();

 private:
  std::ptrdiff_t receive(int socket, std::span<std::byte> bytes);

  std::array<std::byte, 5> head_{};
  std::size_t got_ = 0;  // bytes of head and body
  State state_ = State::incomplete;
  Frame frame_;
};

/// Sends one frame, and `descriptor` with it unless that is -1. Throws CommError if it is too long.
Transfer send_frame(int socket, FrameKind kind, std::string_view body, const Deadline& deadline,
                    int descriptor = -1);

/// Several strings as one, and back. `unpack` throws CommError if `packed` is not what `pack` made.
std::string pack(const std::vector<std::string>& parts);
std::vector<std::string> unpack(std::string_view packed);

}  // namespace lockstep::dist
