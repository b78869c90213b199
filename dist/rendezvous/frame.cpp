#include "lockstep/dist/rendezvous/frame.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

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

/// Room for one descriptor in a message.
union Control {
  std::array<char, CMSG_SPACE(sizeof(int))> bytes{};
  cmsghdr align;
};

}  // namespace

/// Like receive_some, but keeps a descriptor that comes along.
std::ptrdiff_t FrameReader::receive(int socket, std::span<std::byte> bytes) {
  iovec piece{bytes.data(), bytes.size()};
  Control control;
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  ssize_t got = 0;
  do got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  while (got < 0 && errno == EINTR);
  if (got < 0) return errno == EAGAIN ? 0 : peer_closed;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
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
      if (got == 0) break;
      if (got == peer_closed) {
        state_ = State::ended;
        break;
      }
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

  // The descriptor rides on the first byte.
  Control control;
  iovec piece{bytes.data(), 1};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof descriptor);
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  while (::sendmsg(socket, &message, MSG_NOSIGNAL) != 1) {
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
