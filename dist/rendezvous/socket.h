#pragma once
/// Sockets and time limits, as little as the rendezvous and the TCP transport need. Every socket here is
/// non-blocking and closed on exec; interrupted calls are repeated; a vanished peer is a return
/// value, never a signal.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/core/error.h"
#include "lockstep/dist/rendezvous/descriptor.h"
#include "lockstep/dist/rendezvous/ranks.h"

namespace lockstep::dist {

/// A point in time until which something may take.
class Deadline {
 public:
  explicit Deadline(Seconds from_now);
  bool passed() const { return left() <= Seconds(0); }
  Seconds left() const { return end_ - Clock::now(); }
  /// For poll(): what is left, at most `cap`, rounded up so that waiting it out passes the
  /// deadline.
  int milliseconds(Seconds cap = Seconds(3600)) const;

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point end_;
};

/// Where to listen or to connect: "unix:/path" or "host:port" ("[::1]:7000" for IPv6).
struct Endpoint {
  std::string path;  ///< not empty: a Unix socket
  std::string host;
  std::uint16_t port = 0;

  /// Throws UsageError for anything else.
  static Endpoint parse(std::string_view text);
  bool is_unix() const { return !path.empty(); }
  std::string text() const;
};

/// How far a TCP listener can be reached.
enum class ListenScope { this_machine, other_machines };

/// Listens on `where`; port 0 takes any free port. A Unix socket gets mode 0600; a file that a dead
/// process of this user left there is replaced. Over TCP it binds the address that the host's name
/// stands for; for other machines, if that is a loopback address or not one of ours, all addresses.
/// Throws CommError, with the address, if that is not possible.
Descriptor listen_on(const Endpoint& where, ListenScope scope = ListenScope::this_machine);

/// A free port of this machine (local_port()), kept from everybody but those who mean to listen at
/// it: they and we set SO_REUSEADDR, and we do not listen. `host` gives the address family.
Descriptor reserve_port(const std::string& host);

/// A connection, or an empty Descriptor and in `why` the reason: nobody listens (yet). Throws
/// CommError if a Unix socket belongs to another user.
Descriptor connect_to(const Endpoint& where, const Deadline& deadline, std::string& why);

/// The next connection that waits at `listener`; empty if there is none. Connections of other users
/// to a Unix socket are dropped. Throws CommError if there is no descriptor or memory for one more.
Descriptor accept_from(int listener);

/// The address of our end: "127.0.0.1" of a TCP socket; empty for a Unix socket.
std::string local_address(int socket);
std::uint16_t local_port(int socket);
void send_without_delay(int socket);  ///< TCP_NODELAY
/// Lets a TCP connection end when the other machine has not answered for half a minute.
void notice_silence(int socket);

/// Bytes moved; 0 if nothing can be moved now; `peer_closed` if the peer is gone and, for
/// receiving, nothing that it sent is left.
constexpr std::ptrdiff_t peer_closed = -1;
std::ptrdiff_t send_some(int socket, std::span<const std::byte> bytes);
std::ptrdiff_t receive_some(int socket, std::span<std::byte> bytes);

/// Waits until `events` (POLLIN, POLLOUT) can be; false when the deadline has passed.
bool wait_for(int socket, short events, const Deadline& deadline);

enum class Transfer { done, timed_out, closed };
Transfer send_all(int socket, std::span<const std::byte> bytes, const Deadline& deadline);
Transfer receive_all(int socket, std::span<std::byte> bytes, const Deadline& deadline);

/// What errno says, in words.
std::string system_message(int error);

}  // namespace lockstep::dist
