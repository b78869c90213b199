#include "lockstep/dist/rendezvous/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <system_error>

namespace lockstep::dist {

namespace {

constexpr int socket_flags = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;

/// Any kind of socket address, ready for bind() and connect().
struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
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

/// The first address of the host; nothing, and the reason in `why`, if its name is not known.
std::optional<Address> resolve(const Endpoint& where, std::string& why) {
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

bool is_loopback(const Address& address) {
  if (address.family() == AF_INET) {
    const auto& native = reinterpret_cast<const sockaddr_in&>(address.storage);
    return (ntohl(native.sin_addr.s_addr) >> 24) == 127;
  }
  const auto& native = reinterpret_cast<const sockaddr_in6&>(address.storage);
  return IN6_IS_ADDR_LOOPBACK(&native.sin6_addr);
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

int family_of(int socket) {
  Address address;
  address.length = sizeof address.storage;
  if (getsockname(socket, address.get(), &address.length) != 0) return AF_UNSPEC;
  return address.family();
}

/// Takes away a socket file that nobody listens on any more.
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

Descriptor listen_unix(const Endpoint& where) {
  const Address address = unix_address(where.path);
  remove_stale(where);
  Descriptor listener(::socket(AF_UNIX, socket_flags, 0));
  // On Linux the file that bind() makes takes over the socket's mode: it is never open to others.
  const bool listening = listener && fchmod(listener.get(), 0600) == 0 &&
                         ::bind(listener.get(), address.get(), address.length) == 0 &&
                         ::listen(listener.get(), SOMAXCONN) == 0;
  check<CommError>(listening, "[rendezvous] cannot listen on {}: {}", where.text(),
                   system_message(errno));
  return listener;
}

Descriptor listen_tcp(const Endpoint& where, ListenScope scope) {
  std::string why;
  std::optional<Address> address = resolve(where, why);
  check<CommError>(address.has_value(), "[rendezvous] cannot listen on {}: {}", where.text(), why);
  Descriptor listener(::socket(address->family(), socket_flags, 0));
  check<CommError>(static_cast<bool>(listener), "[rendezvous] cannot make a socket: {}",
                   system_message(errno));
  const int on = 1;  // a port whose last user is gone may be taken at once
  setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const bool far = scope == ListenScope::other_machines;
  if (far && is_loopback(*address)) widen_to_all_addresses(*address);
  int bound = ::bind(listener.get(), address->get(), address->length);
  if (bound != 0 && errno == EADDRNOTAVAIL && far) {
    widen_to_all_addresses(*address);
    bound = ::bind(listener.get(), address->get(), address->length);
  }
  check<CommError>(bound == 0 && ::listen(listener.get(), SOMAXCONN) == 0,
                   "[rendezvous] cannot listen on {}: {}", where.text(), system_message(errno));
  return listener;
}

std::optional<Address> address_of(const Endpoint& where, std::string& why) {
  return where.is_unix() ? unix_address(where.path) : resolve(where, why);
}

Address own_address(int socket) {
  Address address;
  address.length = sizeof address.storage;
  check<CommError>(getsockname(socket, address.get(), &address.length) == 0,
                   "[socket] no local address: {}", system_message(errno));
  return address;
}

}  // namespace

Deadline::Deadline(Seconds from_now)
    : end_(Clock::now() +
           std::chrono::duration_cast<Clock::duration>(std::min(from_now, Seconds(1e8)))) {}

int Deadline::milliseconds(Seconds cap) const {
  const double wanted = std::min(left(), cap).count();
  return std::max(0, static_cast<int>(std::ceil(wanted * 1e3)));
}

Endpoint Endpoint::parse(std::string_view text) {
  Endpoint result;
  if (text.starts_with("unix:/")) {
    result.path = text.substr(5);
    return result;
  }
  const std::size_t colon = text.rfind(':');
  if (colon != std::string_view::npos && colon > 0 && !text.starts_with("unix:")) {
    std::string_view host = text.substr(0, colon);
    if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + colon + 1, end, result.port);
    if (error == std::errc{} && stop == end && !host.empty()) {
      result.host = host;
      return result;
    }
  }
  fail<UsageError>("[rendezvous] an address is unix:/PATH or HOST:PORT, got '{}'", text);
}

std::string Endpoint::text() const {
  if (is_unix()) return "unix:" + path;
  const bool colons = host.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", colons ? "[" : "", host, colons ? "]" : "", port);
}

Descriptor listen_on(const Endpoint& where, ListenScope scope) {
  return where.is_unix() ? listen_unix(where) : listen_tcp(where, scope);
}

Descriptor reserve_port(const std::string& host) {
  std::string why;
  std::optional<Address> address = resolve({.path = {}, .host = host, .port = 0}, why);
  check<CommError>(address.has_value(), "[rendezvous] no port at {}: {}", host, why);
  widen_to_all_addresses(*address);
  Descriptor port(::socket(address->family(), socket_flags, 0));
  const int on = 1;
  const bool bound = port &&
                     setsockopt(port.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
                     ::bind(port.get(), address->get(), address->length) == 0;
  check<CommError>(bound, "[rendezvous] no free port: {}", system_message(errno));
  return port;
}

Descriptor connect_to(const Endpoint& where, const Deadline& deadline, std::string& why) {
  const std::optional<Address> address = address_of(where, why);
  if (!address) return {};
  Descriptor socket(::socket(address->family(), socket_flags, 0));
  check<CommError>(static_cast<bool>(socket), "[rendezvous] cannot make a socket: {}",
                   system_message(errno));
  int error = 0;
  if (::connect(socket.get(), address->get(), address->length) != 0) {
    error = errno;
    if (error == EINPROGRESS || error == EINTR) {
      error = ETIMEDOUT;
      socklen_t length = sizeof error;
      if (wait_for(socket.get(), POLLOUT, deadline))
        getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    }
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
      // Waiting would be in vain, and the connection stays ready to be accepted: a busy loop.
      const bool short_of =
          error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
      check<CommError>(!short_of, "[rendezvous] cannot accept a connection: {}",
                       system_message(error));
      return {};
    }
    if (family_of(peer.get()) != AF_UNIX || same_user(peer.get())) return peer;
  }
}

std::string local_address(int socket) {
  const Address address = own_address(socket);
  if (address.family() == AF_UNIX) return "";
  char text[NI_MAXHOST] = "";
  getnameinfo(address.get(), address.length, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return text;
}

std::uint16_t local_port(int socket) {
  const Address address = own_address(socket);
  if (address.family() == AF_INET)
    return ntohs(reinterpret_cast<const sockaddr_in&>(address.storage).sin_port);
  return ntohs(reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_port);
}

void send_without_delay(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

void notice_silence(int socket) {
  const auto set = [&](int level, int name, int value) {
    setsockopt(socket, level, name, &value, sizeof value);
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 10);  // seconds until the first question
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 30'000);  // milliseconds, for what was sent
}

std::ptrdiff_t send_some(int socket, std::span<const std::byte> bytes) {
  if (bytes.empty()) return 0;
  while (true) {
    const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) return sent;
    if (errno == EAGAIN) return 0;
    if (errno != EINTR) return peer_closed;
  }
}

std::ptrdiff_t receive_some(int socket, std::span<std::byte> bytes) {
  if (bytes.empty()) return 0;
  while (true) {
    const ssize_t got = ::recv(socket, bytes.data(), bytes.size(), 0);
    if (got > 0) return got;
    if (got == 0) return peer_closed;  // the end of the stream is no data
    if (errno == EAGAIN) return 0;
    if (errno != EINTR) return peer_closed;
  }
}

bool wait_for(int socket, short events, const Deadline& deadline) {
  while (!deadline.passed()) {
    pollfd entry{socket, events, 0};
    if (::poll(&entry, 1, deadline.milliseconds()) > 0) return true;
  }
  return false;
}

Transfer send_all(int socket, std::span<const std::byte> bytes, const Deadline& deadline) {
  while (!bytes.empty()) {
    const std::ptrdiff_t sent = send_some(socket, bytes);
    if (sent == peer_closed) return Transfer::closed;
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
    if (sent == 0 && !wait_for(socket, POLLOUT, deadline)) return Transfer::timed_out;
  }
  return Transfer::done;
}

Transfer receive_all(int socket, std::span<std::byte> bytes, const Deadline& deadline) {
  while (!bytes.empty()) {
    const std::ptrdiff_t got = receive_some(socket, bytes);
    if (got == peer_closed) return Transfer::closed;
    bytes = bytes.subspan(static_cast<std::size_t>(got));
    if (got == 0 && !wait_for(socket, POLLIN, deadline)) return Transfer::timed_out;
  }
  return Transfer::done;
}

std::string system_message(int error) { return std::generic_category().message(error); }

}  // namespace lockstep::dist
