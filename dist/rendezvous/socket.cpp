#include "lockstep/dist/rendezvous/socket.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <system_error>

namespace lockstep::dist {

namespace {

template <class Bytes, class F>
Transfer move_all(int socket, Bytes bytes, short event, const Deadline& deadline, F&& move_some) {
  while (!bytes.empty()) {
    const std::ptrdiff_t moved = move_some(socket, bytes);
    if (moved == peer_closed) return Transfer::closed;
    bytes = bytes.subspan(static_cast<std::size_t>(moved));
    if (moved == 0 && !wait_for(socket, event, deadline)) return Transfer::timed_out;
  }
  return Transfer::done;
}

constexpr std::size_t most_pieces = 5;

/// The message that consists of these pieces, which `list` names for the system.
template <class Byte>
msghdr message_of(std::span<const std::span<Byte>> pieces, std::array<iovec, most_pieces>& list) {
  msghdr message{};
  message.msg_iov = list.data();
  for (const std::span<Byte> piece : pieces)
    if (!piece.empty())
      list[message.msg_iovlen++] = {const_cast<std::byte*>(piece.data()), piece.size()};
  return message;
}

}  // namespace

int checked(int result, std::string_view what) {
  if (result < 0) fail<Error>("[launch] cannot {}: {}", what, system_message(errno));
  return result;
}

Pipe make_pipe() {
  int ends[2];
  checked(pipe2(ends, O_CLOEXEC), "make a pipe");
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

Deadline::Deadline(Seconds from_now)
    : end_(Clock::now() +
           std::chrono::duration_cast<Clock::duration>(std::min(from_now, Seconds(1e8)))) {}

int Deadline::milliseconds() const {
  const double wanted = std::min(left(), Seconds(3600)).count();
  return std::max(0, static_cast<int>(std::ceil(wanted * 1e3)));
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
  return send_pieces(socket, {&bytes, 1});
}

std::ptrdiff_t receive_some(int socket, std::span<std::byte> bytes) {
  return receive_pieces(socket, {&bytes, 1});
}

std::ptrdiff_t send_pieces(int socket, std::span<const std::span<const std::byte>> pieces) {
  std::array<iovec, most_pieces> list;
  const msghdr message = message_of(pieces, list);
  if (message.msg_iovlen == 0) return 0;
  const ssize_t sent = TEMP_FAILURE_RETRY(::sendmsg(socket, &message, MSG_NOSIGNAL));
  if (sent >= 0) return sent;
  return errno == EAGAIN ? 0 : peer_closed;
}

std::ptrdiff_t receive_pieces(int socket, std::span<const std::span<std::byte>> pieces) {
  std::array<iovec, most_pieces> list;
  msghdr message = message_of(pieces, list);
  if (message.msg_iovlen == 0) return 0;
  const ssize_t got = TEMP_FAILURE_RETRY(::recvmsg(socket, &message, 0));
  if (got < 0 && errno == EAGAIN) return 0;
  return got > 0 ? got : peer_closed;  // 0 is the end of the stream
}

bool wait_for(int socket, short events, const Deadline& deadline) {
  while (!deadline.passed()) {
    pollfd entry{socket, events, 0};
    if (::poll(&entry, 1, deadline.milliseconds()) > 0) return true;
  }
  return false;
}

Transfer send_all(int socket, std::span<const std::byte> bytes, const Deadline& deadline) {
  return move_all(socket, bytes, POLLOUT, deadline, send_some);
}

Transfer receive_all(int socket, std::span<std::byte> bytes, const Deadline& deadline) {
  return move_all(socket, bytes, POLLIN, deadline, receive_some);
}

std::string system_message(int error) { return std::generic_category().message(error); }

}  // namespace lockstep::dist
