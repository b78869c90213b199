#include "lockstep/dist/transport/tcp/checked_stream.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace lockstep::dist {

Tag CheckedStream::Head::right_own_tag(Sealer& sealer, const Token& key) const {
  return sealer.seal(key, std::as_bytes(std::span(this, 1)).first(offsetof(Head, own_tag)));
}

/// Each frame takes two keys: for its head, for its bytes.
void CheckedStream::begin_frame(std::span<const std::byte> bytes) {
  const Token head_key = connection_.sending.next();
  leaving_.length = static_cast<std::uint32_t>(bytes.size());
  leaving_.tag = whole_.seal(connection_.sending.next(), bytes);
  leaving_.own_tag = leaving_.right_own_tag(whole_, head_key);
  head_left_ = sizeof leaving_;
  frame_left_ = bytes.size();
}

std::ptrdiff_t CheckedStream::send(std::span<const std::byte> bytes) {
  if (bytes.empty()) return 0;
  if (frame_left_ == 0) begin_frame(bytes.first(std::min(bytes.size(), most_bytes)));
  const auto payload = bytes.first(std::min(bytes.size(), frame_left_));
  const auto head = std::as_bytes(std::span(&leaving_, 1)).last(head_left_);
  const std::ptrdiff_t sent = send_both(connection_.get(), head, payload);
  if (sent == peer_closed) return sent;
  const std::size_t of_head = std::min(head_left_, static_cast<std::size_t>(sent));
  const std::size_t of_payload = static_cast<std::size_t>(sent) - of_head;
  head_left_ -= of_head;
  frame_left_ -= of_payload;
  return static_cast<std::ptrdiff_t>(of_payload);
}

std::ptrdiff_t CheckedStream::receive(std::span<std::byte> bytes) {
  if (bytes.empty()) return 0;
  while (true) {
    if (wanted_ == 0) read_head();
    const std::size_t most = std::min(wanted_, bytes.size());
    std::ptrdiff_t count = 0;
    if (most > 0 && buffered() > 0) {
      count = static_cast<std::ptrdiff_t>(take(bytes.first(most)));
    } else if (most >= buffer_.size()) {
      count = receive_some(connection_.get(), bytes.first(most));
      if (count <= 0) return count;
    } else {
      std::memmove(buffer_.data(), buffer_.data() + begin_, buffered());
      end_ -= std::exchange(begin_, 0);
      const std::ptrdiff_t got = receive_some(connection_.get(), std::span(buffer_).subspan(end_));
      if (got <= 0) return got;
      end_ += static_cast<std::size_t>(got);
      continue;
    }
    sealer_.add(bytes.first(static_cast<std::size_t>(count)));
    wanted_ -= static_cast<std::size_t>(count);
    if (wanted_ == 0) check_tag();
    return count;
  }
}

/// From what was read ahead, if the whole head is there.
void CheckedStream::read_head() {
  if (buffered() < sizeof arriving_) return;
  take(std::as_writable_bytes(std::span(&arriving_, 1)));
  const Tag right = arriving_.right_own_tag(whole_, connection_.receiving.next());
  check<CommError>(same(arriving_.own_tag, right),
                   "the head of a frame of {} bytes was changed on the way: its tag is {}, not {}",
                   arriving_.length, hex(arriving_.own_tag), hex(right));
  wanted_ = arriving_.length;
  sealer_.begin(connection_.receiving.next());
}

void CheckedStream::check_tag() {
  const Tag right = sealer_.tag();
  check<CommError>(same(arriving_.tag, right),
                   "{} bytes were changed on the way: their tag is {}, not {}", arriving_.length,
                   hex(arriving_.tag), hex(right));
}

std::size_t CheckedStream::take(std::span<std::byte> bytes) {
  const std::size_t count = std::min(bytes.size(), buffered());
  std::memcpy(bytes.data(), buffer_.data() + begin_, count);
  begin_ += count;
  return count;
}

}  // namespace lockstep::dist
