#pragma once
/// Where a rank listens and connects: addresses, listeners, connections, network interfaces.
///
/// Thread-safety: every function may be called from any thread.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/dist/rendezvous/socket.h"

namespace lockstep::dist {

/// An address: "unix:/path" or "host:port" ("[::1]:7000" for IPv6).
struct Endpoint {
  std::string path{};  ///< not empty: a Unix socket
  std::string host{};
  std::uint16_t port = 0;

  /// Throws UsageError for any other text.
  static Endpoint parse(std::string_view text);
  bool is_unix() const { return !path.empty(); }
  std::string text() const;
};

/// Listens on `where`. Port 0 takes any free port. A Unix socket gets mode 0600 and replaces the
/// file of a dead process of this user. Over TCP it binds the address that the host's name stands
/// for. Unless all processes that connect are on `one_machine`, it binds all addresses if that
/// address is a loopback address or not ours. Throws CommError, with the address, if that is not
/// possible.
Descriptor listen_on(const Endpoint& where, bool one_machine = true);

/// Reserves a free port of this machine (see local_port()). Only a process that sets SO_REUSEADDR,
/// as listen_on does, can listen at it while the descriptor is open. `host` gives the address
/// family. Throws CommError if no port is free.
Descriptor reserve_port(const std::string& host);

/// A connection; or an empty Descriptor, and the reason in `why`, if no process listens (yet).
/// Throws CommError if a Unix socket belongs to another user.
Descriptor connect_to(const Endpoint& where, const Deadline& deadline, std::string& why);

/// The next connection that waits at `listener`; empty if there is none. Connections of other users
/// to a Unix socket are dropped. Throws CommError if there is no descriptor or memory for one more.
Descriptor accept_from(int listener);

/// The address of our end of a connection: "127.0.0.1" for TCP, empty for a Unix socket.
std::string local_address(int socket);
std::uint16_t local_port(int socket);

/// A network interface of this machine, with one of its addresses.
struct Interface {
  std::string name;     ///< "eth0"
  std::string address;  ///< "10.0.0.1", "fd00::1"
};

/// The interfaces that are up: an entry for each address, IPv4 first. Link-local addresses are left
/// out, because they mean nothing on another machine.
std::vector<Interface> interfaces();
std::string describe(const std::vector<Interface>& list);  ///< "lo 127.0.0.1, eth0 10.0.0.1"

/// The address that `wanted` stands for: the name of an interface or one of its addresses. Throws
/// UsageError, with the list, if it is neither.
std::string interface_address(std::string_view wanted,
                              const std::vector<Interface>& list = interfaces());

/// True for "127.0.0.1" and its like, "::1" and "localhost": on every machine they mean this one.
bool is_loopback(std::string_view host);

/// Checks that all ranks can be reached at the hosts of these endpoints, by rank, seen from rank
/// `own`. They cannot if some are loopback addresses and others are not, because then there are
/// several machines. Throws CommError, with the interfaces, on the ranks whose own address is
/// wrong, and PeerError on the others.
void check_reachable(const std::vector<Endpoint>& ranks, int own);

}  // namespace lockstep::dist
