#pragma once
/// File descriptors, deadlines, and bytes over sockets: as little as the rendezvous and the tcp
/// transport need.
///
/// Every socket here is non-blocking and closed on exec. Interrupted system calls are repeated. A
/// peer that has vanished is a return value, never a signal.
///
/// Thread-safety: functions may be called from any thread, an object from one thread at a time.

#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/dist/rendezvous/ranks.h"

namespace lockstep::dist {

/// Owns a file descriptor and closes it at its end. Movable, not copyable.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    other.close();
    return *this;
  }
  ~Descriptor() { close(); }

  explicit operator bool() const { return number_ >= 0; }
  int get() const { return number_; }

  void close() {
    if (number_ >= 0) ::close(number_);
    number_ = -1;
  }

 private:
  int number_ = -1;
};

/// Returns `result`, what a system call returned. Throws Error `[launch] cannot <what>: <errno's
/// text>` if it is negative. (It is a function because in `check(call() == 0, "{}", errno)` errno
/// may be read before the call.)
int checked(int result, std::string_view what);
/// What an errno means, in words.
std::string system_message(int error);

/// Both ends are closed on exec.
struct Pipe {
  Descriptor read_end, write_end;
};
Pipe make_pipe();  ///< throws Error if the process has no descriptor left

/// A point in time until which something may take.
class Deadline {
 public:
  explicit Deadline(Seconds from_now);
  bool passed() const { return left() <= Seconds(0); }
  Seconds left() const { return end_ - Clock::now(); }
  /// The time left for poll(), at most an hour. Rounded up, so that the deadline has passed after
  /// it.
  int milliseconds() const;

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point end_;
};

void send_without_delay(int socket);  ///< sets TCP_NODELAY
/// Ends a TCP connection whose other machine has not answered for half a minute.
void notice_silence(int socket);

/// Both return the number of bytes moved: 0 if nothing can be moved now, `peer_closed` if the peer
/// is gone and, for receiving, nothing that it sent is left.
constexpr std::ptrdiff_t peer_closed = -1;
std::ptrdiff_t send_some(int socket, std::span<const std::byte> bytes);
std::ptrdiff_t receive_some(int socket, std::span<std::byte> bytes);
/// The same for up to five pieces, one after the other, by one call of the system.
std::ptrdiff_t send_pieces(int socket, std::span<const std::span<const std::byte>> pieces);
std::ptrdiff_t receive_pieces(int socket, std::span<const std::span<std::byte>> pieces);

/// Waits until one of `events` (POLLIN, POLLOUT) is possible. False when the deadline has passed.
bool wait_for(int socket, short events, const Deadline& deadline);

enum class Transfer { done, timed_out, closed };
Transfer send_all(int socket, std::span<const std::byte> bytes, const Deadline& deadline);
Transfer receive_all(int socket, std::span<std::byte> bytes, const Deadline& deadline);

}  // namespace lockstep::dist
