#include "lockstep/dist/rendezvous/endpoint.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>

namespace lockstep::dist {

namespace {

/// Any kind of socket address, ready for bind() and connect().
struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
};

Address unix_address(const std::string& path) {
  Address address;
  auto& native = reinterpret_cast<sockaddr_un&>(address.storage);
  check<CommError>(path.size() < sizeof native.sun_path,
                   "[rendezvous] a socket's path has at most {} characters: '{}'",
                   sizeof native.sun_path - 1, path);
  native.sun_family = AF_UNIX;
  std::memcpy(native.sun_path, path.data(), path.size());
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + 1);
  return address;
}

/// The first address of the host, or the socket's path; or nothing, and the reason in `why`, if the
/// host's name is not known.
std::optional<Address> resolve(const Endpoint& where, std::string& why) {
  if (where.is_unix()) return unix_address(where.path);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(where.host.c_str(), std::to_string(where.port).c_str(), &hints, &found);
  if (error != 0) {
    why = gai_strerror(error);
    return std::nullopt;
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  Address address;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  address.length = found->ai_addrlen;
  return address;
}

/// "127.0.0.1", "fd00::1"; empty if the system cannot say.
std::string numeric_host(const sockaddr* address, socklen_t length) {
  std::array<char, NI_MAXHOST> text{};
  getnameinfo(address, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return text.data();
}

void widen_to_all_addresses(Address& address) {
  if (address.family() == AF_INET) {
    reinterpret_cast<sockaddr_in&>(address.storage).sin_addr.s_addr = htonl(INADDR_ANY);
  } else {
    reinterpret_cast<sockaddr_in6&>(address.storage).sin6_addr = in6addr_any;
  }
}

bool same_user(int socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == geteuid();
}

Address own_address(int socket) {
  Address address;
  address.length = sizeof address.storage;
  const bool known = getsockname(socket, address.get(), &address.length) == 0;
  check<CommError>(known, "[socket] no local address: {}", system_message(errno));
  return address;
}

/// Removes a socket file on which no process listens any more.
void remove_stale(const Endpoint& where) {
  struct stat status {};
  if (lstat(where.path.c_str(), &status) != 0) return;
  check<CommError>(S_ISSOCK(status.st_mode) && status.st_uid == geteuid(),
                   "[rendezvous] {} is in the way: not a socket of this user", where.text());
  std::string why;
  check<CommError>(!connect_to(where, Deadline(Seconds(1)), why),
                   "[rendezvous] another rank 0 of this job is listening on {}", where.text());
  ::unlink(where.path.c_str());
}

/// It may be bound to an address that others have: a port whose last user is gone is free at once.
Descriptor make_socket(int family) {
  Descriptor result(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  check<CommError>(static_cast<bool>(result), "[rendezvous] cannot make a socket: {}",
                   system_message(errno));
  const int on = 1;
  setsockopt(result.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  return result;
}

}  // namespace

Endpoint Endpoint::parse(std::string_view text) {
  if (text.starts_with("unix:/")) return {.path = std::string(text.substr(5))};
  const std::size_t colon = text.rfind(':');
  if (colon != std::string_view::npos && colon > 0 && !text.starts_with("unix:")) {
    std::string_view host = text.substr(0, colon);
    if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
    const auto port = parse_number<std::uint16_t>(text.substr(colon + 1));
    if (port && !host.empty()) return {.host = std::string(host), .port = *port};
  }
  fail<UsageError>("[rendezvous] an address is unix:/PATH or HOST:PORT, got '{}'", text);
}

std::string Endpoint::text() const {
  if (is_unix()) return "unix:" + path;
  const bool colons = host.find(':') != std::string::npos;
  return colons ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

Descriptor listen_on(const Endpoint& where, bool one_machine) {
  if (where.is_unix()) remove_stale(where);
  std::string why;
  std::optional<Address> address = resolve(where, why);
  check<CommError>(address.has_value(), "[rendezvous] cannot listen on {}: {}", where.text(), why);
  Descriptor listener = make_socket(address->family());
  const auto bind_to_address = [&] {
    // On Linux the file that bind() makes takes over the socket's mode: it is never open to others.
    return (!where.is_unix() || ::fchmod(listener.get(), 0600) == 0) &&
           ::bind(listener.get(), address->get(), address->length) == 0;
  };
  const bool far = !one_machine && !where.is_unix();
  if (far && is_loopback(numeric_host(address->get(), address->length)))
    widen_to_all_addresses(*address);
  bool bound = bind_to_address();
  if (!bound && errno == EADDRNOTAVAIL && far) {
    widen_to_all_addresses(*address);
    bound = bind_to_address();
  }
  const int problem = bound && ::listen(listener.get(), SOMAXCONN) == 0 ? 0 : errno;
  check<CommError>(problem == 0, "[rendezvous] cannot listen on {}: {}", where.text(),
                   system_message(problem));
  return listener;
}

Descriptor reserve_port(const std::string& host) {
  std::string why;
  std::optional<Address> address = resolve({.host = host}, why);
  check<CommError>(address.has_value(), "[rendezvous] no port at {}: {}", host, why);
  widen_to_all_addresses(*address);
  Descriptor port = make_socket(address->family());
  const bool bound = ::bind(port.get(), address->get(), address->length) == 0;
  check<CommError>(bound, "[rendezvous] no free port: {}", system_message(errno));
  return port;
}

Descriptor connect_to(const Endpoint& where, const Deadline& deadline, std::string& why) {
  std::optional<Address> address = resolve(where, why);
  if (!address) return {};
  Descriptor socket = make_socket(address->family());
  int error = ::connect(socket.get(), address->get(), address->length) == 0 ? 0 : errno;
  if (error == EINPROGRESS || error == EINTR) {
    error = ETIMEDOUT;
    socklen_t length = sizeof error;
    if (wait_for(socket.get(), POLLOUT, deadline))
      getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  }
  if (error != 0) {
    why = system_message(error);
    return {};
  }
  check<CommError>(!where.is_unix() || same_user(socket.get()),
                   "[rendezvous] {} belongs to another user", where.text());
  return socket;
}

Descriptor accept_from(int listener) {
  while (true) {
    Descriptor peer(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!peer) {
      const int error = errno;
      if (error == EINTR || error == ECONNABORTED) continue;
      // The connection would stay ready to be accepted, and our caller would loop without pause.
      const bool short_of =
          error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
      check<CommError>(!short_of, "[rendezvous] cannot accept a connection: {}",
                       system_message(error));
      return {};
    }
    if (own_address(peer.get()).family() != AF_UNIX || same_user(peer.get())) return peer;
  }
}

std::string local_address(int socket) {
  Address address = own_address(socket);
  if (address.family() == AF_UNIX) return "";
  return numeric_host(address.get(), address.length);
}

std::uint16_t local_port(int socket) {
  const Address address = own_address(socket);
  if (address.family() == AF_INET)
    return ntohs(reinterpret_cast<const sockaddr_in&>(address.storage).sin_port);
  return ntohs(reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_port);
}

std::vector<Interface> interfaces() {
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(found, &freeifaddrs);
  std::vector<Interface> result;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = found; entry; entry = entry->ifa_next) {
      if (!entry->ifa_addr || entry->ifa_addr->sa_family != family) continue;
      if (!(entry->ifa_flags & IFF_UP)) continue;
      if (family == AF_INET6 &&
          IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<sockaddr_in6*>(entry->ifa_addr)->sin6_addr))
        continue;
      const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      result.push_back({entry->ifa_name, numeric_host(entry->ifa_addr, size)});
    }
  }
  return result;
}

std::string describe(const std::vector<Interface>& list) {
  std::string text;
  for (const auto& [name, address] : list)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, address);
  return text.empty() ? "none" : text;
}

std::string interface_address(std::string_view wanted, const std::vector<Interface>& list) {
  for (const auto& [name, address] : list)
    if (name == wanted || address == wanted) return address;
  fail<UsageError>("[interface] '{}' is no interface of this machine; there are: {}", wanted,
                   describe(list));
}

bool is_loopback(std::string_view host) {
  const std::string text(host);
  in_addr four{};
  if (::inet_pton(AF_INET, text.c_str(), &four) == 1) return (ntohl(four.s_addr) >> 24) == 127;
  in6_addr six{};
  if (::inet_pton(AF_INET6, text.c_str(), &six) == 1) return IN6_IS_ADDR_LOOPBACK(&six);
  return text == "localhost";
}

void check_reachable(const std::vector<Endpoint>& ranks, int own) {
  const auto far = std::ranges::find_if_not(ranks, is_loopback, &Endpoint::host);
  const auto loop = std::ranges::find_if(ranks, is_loopback, &Endpoint::host);
  if (far == ranks.end() || loop == ranks.end()) return;
  const bool mine = is_loopback(ranks[index(own)].host);
  const auto culprit = mine ? own : loop - ranks.begin();
  const std::string reason = fmt::format(
      "[interface] rank {} would be reached at {}, a loopback address, but rank {} at {} is on "
      "another machine",
      culprit, mine ? ranks[index(own)].host : loop->host, far - ranks.begin(), far->host);
  check<PeerError>(mine, "{}", reason);
  fail<CommError>(
      "{}; {} is what its connection with rank 0, or LOCKSTEP_INTERFACE, led to. Set "
      "LOCKSTEP_INTERFACE (lockstep-run: --interface) to one of: {}",
      reason, ranks[index(own)].host, describe(interfaces()));
}

}  // namespace lockstep::dist
