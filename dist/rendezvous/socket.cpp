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

std::uint32_t read_u32(const void* from) {
  std::uint32_t value = 0;
  std::memcpy(&value, from, sizeof value);
  return value;
}

void append_u32(std::string& to, std::size_t value) {
  const auto narrow = static_cast<std::uint32_t>(value);
  to.append(reinterpret_cast<const char*>(&narrow), sizeof narrow);
}

/// A message of some bytes, with room for one descriptor.
struct Message {
  Message(void* bytes, std::size_t count) : piece{bytes, count} {
    header.msg_iov = &piece;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
  }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;

  iovec piece;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr header{};
};

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
  if (bytes.empty()) return 0;
  const ssize_t sent = TEMP_FAILURE_RETRY(::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL));
  if (sent >= 0) return sent;
  return errno == EAGAIN ? 0 : peer_closed;
}

std::ptrdiff_t send_both(int socket, std::span<const std::byte> first,
                         std::span<const std::byte> second) {
  if (first.empty()) return send_some(socket, second);
  const auto piece = [](std::span<const std::byte> bytes) {
    return iovec{const_cast<std::byte*>(bytes.data()), bytes.size()};
  };
  std::array<iovec, 2> pieces{piece(first), piece(second)};
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  const ssize_t sent = TEMP_FAILURE_RETRY(::sendmsg(socket, &message, MSG_NOSIGNAL));
  if (sent >= 0) return sent;
  return errno == EAGAIN ? 0 : peer_closed;
}

std::ptrdiff_t receive_some(int socket, std::span<std::byte> bytes) {
  if (bytes.empty()) return 0;
  const ssize_t got = TEMP_FAILURE_RETRY(::recv(socket, bytes.data(), bytes.size(), 0));
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

/// Like receive_some, but keeps a descriptor that comes along.
std::ptrdiff_t FrameReader::receive(int socket, std::span<std::byte> bytes) {
  Message message(bytes.data(), bytes.size());
  const ssize_t got = TEMP_FAILURE_RETRY(::recvmsg(socket, &message.header, MSG_CMSG_CLOEXEC));
  if (got < 0) return errno == EAGAIN ? 0 : peer_closed;
  const cmsghdr* header = CMSG_FIRSTHDR(&message.header);
  if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
    int number = -1;
    std::memcpy(&number, CMSG_DATA(header), sizeof number);
    frame_.descriptor = Descriptor(number);
  }
  return got == 0 ? peer_closed : got;
}

FrameReader::State FrameReader::read(int socket) {
  while (state_ == State::incomplete) {
    const bool in_head = got_ < head_.size();
    const auto body = std::as_writable_bytes(std::span(frame_.body));
    const auto rest = in_head ? std::span(head_).subspan(got_) : body.subspan(got_ - head_.size());
    if (!rest.empty()) {
      const std::ptrdiff_t got = receive(socket, rest);
      if (got == 0) return state_;
      if (got == peer_closed) return state_ = State::ended;
      got_ += static_cast<std::size_t>(got);
    }
    if (in_head && got_ == head_.size()) {
      const std::size_t length = read_u32(head_.data());
      check<CommError>(length <= most_frame_bytes,
                       "[rendezvous] a frame of {} bytes; at most {} are allowed", length,
                       most_frame_bytes);
      frame_.kind = static_cast<FrameKind>(head_.back());
      frame_.body.resize(length);
    }
    if (got_ >= head_.size() && got_ - head_.size() == frame_.body.size()) state_ = State::complete;
  }
  return state_;
}

Frame FrameReader::take() {
  Frame result = std::move(frame_);
  *this = FrameReader();
  return result;
}

Transfer send_frame(int socket, FrameKind kind, std::string_view body, const Deadline& deadline,
                    int descriptor) {
  check<CommError>(body.size() <= most_frame_bytes,
                   "[rendezvous] a frame of {} bytes; at most {} are allowed", body.size(),
                   most_frame_bytes);
  std::string bytes;
  bytes.reserve(body.size() + 5);
  append_u32(bytes, body.size());
  bytes.push_back(static_cast<char>(kind));
  bytes += body;
  if (descriptor < 0) return send_all(socket, std::as_bytes(std::span(bytes)), deadline);

  Message message(bytes.data(), 1);  // the descriptor goes with the first byte
  cmsghdr* header = CMSG_FIRSTHDR(&message.header);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof descriptor);
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  while (::sendmsg(socket, &message.header, MSG_NOSIGNAL) != 1) {
    if (errno != EAGAIN && errno != EINTR) return Transfer::closed;
    if (!wait_for(socket, POLLOUT, deadline)) return Transfer::timed_out;
  }
  return send_all(socket, std::as_bytes(std::span(bytes)).subspan(1), deadline);
}

std::string pack(const std::vector<std::string>& parts) {
  std::string packed;
  for (const std::string& part : parts) {
    append_u32(packed, part.size());
    packed += part;
  }
  return packed;
}

std::vector<std::string> unpack(std::string_view packed) {
  std::vector<std::string> parts;
  while (!packed.empty()) {
    check<CommError>(packed.size() >= 4, "[rendezvous] a frame ends inside a length");
    const std::size_t length = read_u32(packed.data());
    packed.remove_prefix(4);
    check<CommError>(length <= packed.size(),
                     "[rendezvous] {} bytes announced in a frame, {} are left", length,
                     packed.size());
    parts.emplace_back(packed.substr(0, length));
    packed.remove_prefix(length);
  }
  return parts;
}

}  // namespace lockstep::dist
