#include "lockstep/dist/rendezvous/frames.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace lockstep::dist {
namespace {

static_assert(frame_head_bytes == frame_kind_at + 1 + sizeof(Tag));

std::uint32_t read_u32(const void* from) {
  std::uint32_t value = 0;
  std::memcpy(&value, from, sizeof value);
  return value;
}

void append_u32(std::string& to, std::size_t value) {
  const auto narrow = static_cast<std::uint32_t>(value);
  to.append(reinterpret_cast<const char*>(&narrow), sizeof narrow);
}

void append_tag(std::string& to, const Token& key, std::string_view bytes) {
  const Tag tag = seal(key, std::as_bytes(std::span(bytes)));
  to.append(reinterpret_cast<const char*>(tag.data()), tag.size());
}

/// Whether the bytes end with their tag.
bool is_sealed(const Token& key, std::span<const std::byte> bytes) {
  const std::size_t before = bytes.size() - sizeof(Tag);
  Tag tag;
  std::memcpy(tag.data(), bytes.subspan(before).data(), tag.size());
  return same(tag, seal(key, bytes.first(before)));
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

}  // namespace

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

/// What is still to come: of the head, or of what the head has announced.
std::span<std::byte> FrameReader::rest() {
  if (got_ < head_.size()) return std::span(head_).subspan(got_);
  return std::as_writable_bytes(std::span(frame_.body)).subspan(got_ - head_.size());
}

FrameReader::State FrameReader::read(Connection& from) {
  while (state_ == State::incomplete) {
    const bool in_head = got_ < head_.size();
    const std::span<std::byte> wanted = rest();
    const std::ptrdiff_t got = receive(from.get(), wanted);
    if (got == 0) return state_;
    if (got == peer_closed) return state_ = State::ended;
    got_ += static_cast<std::size_t>(got);
    if (static_cast<std::size_t>(got) < wanted.size()) continue;
    state_ = State::ended;  // if the next line throws
    in_head ? take_head(from) : check_body(from);
    state_ = in_head ? State::incomplete : State::complete;
  }
  return state_;
}

void FrameReader::take_head(Connection& from) {
  const std::size_t length = read_u32(head_.data());
  check<CommError>(is_sealed(from.receiving.next(), head_),
                   "the head of a frame was changed on the way: {} bytes", length);
  check<CommError>(length <= most_frame_bytes, "a frame of {} bytes; at most {} are allowed",
                   length, most_frame_bytes);
  frame_.kind = static_cast<FrameKind>(head_[frame_kind_at]);
  frame_.body.resize(length + sizeof(Tag));
}

void FrameReader::check_body(Connection& from) {
  const std::size_t length = frame_.body.size() - sizeof(Tag);
  check<CommError>(is_sealed(from.receiving.next(), std::as_bytes(std::span(frame_.body))),
                   "the {} bytes of a frame of kind '{}' were changed on the way", length,
                   static_cast<char>(frame_.kind));
  frame_.body.resize(length);
}

Frame FrameReader::take() {
  Frame result = std::move(frame_);
  *this = FrameReader();
  return result;
}

Transfer send_frame(Connection& to, FrameKind kind, std::string_view body, const Deadline& deadline,
                    int descriptor) {
  check<CommError>(body.size() <= most_frame_bytes,
                   "[rendezvous] a frame of {} bytes; at most {} are allowed", body.size(),
                   most_frame_bytes);
  std::string bytes;
  bytes.reserve(frame_head_bytes + body.size() + sizeof(Tag));
  append_u32(bytes, body.size());
  bytes.push_back(static_cast<char>(kind));
  append_tag(bytes, to.sending.next(), bytes);
  bytes += body;
  append_tag(bytes, to.sending.next(), body);
  if (descriptor < 0) return send_all(to.get(), std::as_bytes(std::span(bytes)), deadline);

  Message message(bytes.data(), 1);  // the descriptor goes with the first byte
  cmsghdr* header = CMSG_FIRSTHDR(&message.header);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof descriptor);
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  while (::sendmsg(to.get(), &message.header, MSG_NOSIGNAL) != 1) {
    if (errno != EAGAIN && errno != EINTR) return Transfer::closed;
    if (!wait_for(to.get(), POLLOUT, deadline)) return Transfer::timed_out;
  }
  return send_all(to.get(), std::as_bytes(std::span(bytes)).subspan(1), deadline);
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
