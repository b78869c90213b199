#include "lockstep/dist/transport/tcp/checked_stream.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/dist/transport/tcp/crc32c.h"

namespace lockstep::dist {

std::uint32_t CheckedStream::Head::right_own_sum() const {
  return crc32c(std::as_bytes(std::span(this, 1)).first(offsetof(Head, own_sum)));
}

std::ptrdiff_t CheckedStream::send(std::span<const std::byte> bytes) {
  if (bytes.empty()) return 0;
  if (frame_left_ == 0) {
    frame_left_ = std::min(bytes.size(), most_bytes);
    leaving_ = {static_cast<std::uint32_t>(frame_left_), crc32c(bytes.first(frame_left_)), 0};
    leaving_.own_sum = leaving_.right_own_sum();
    head_left_ = sizeof leaving_;
  }
  const auto payload = bytes.first(std::min(bytes.size(), frame_left_));
  const auto head = std::as_bytes(std::span(&leaving_, 1)).last(head_left_);
  const std::ptrdiff_t sent = send_both(socket_.get(), head, payload);
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
      count = receive_some(socket_.get(), bytes.first(most));
      if (count <= 0) return count;
    } else {
      std::memmove(buffer_.data(), buffer_.data() + begin_, buffered());
      end_ -= std::exchange(begin_, 0);
      const std::ptrdiff_t got = receive_some(socket_.get(), std::span(buffer_).subspan(end_));
      if (got <= 0) return got;
      end_ += static_cast<std::size_t>(got);
      continue;
    }
    sum_ = crc32c(bytes.first(static_cast<std::size_t>(count)), sum_);
    wanted_ -= static_cast<std::size_t>(count);
    check<CommError>(wanted_ > 0 || sum_ == arriving_.sum,
                     "{} bytes were changed on the way: their checksum is {:#010x}, not {:#010x}",
                     arriving_.length, sum_, arriving_.sum);
    return count;
  }
}

/// From what was read ahead, if the whole head is there.
void CheckedStream::read_head() {
  if (buffered() < sizeof arriving_) return;
  take(std::as_writable_bytes(std::span(&arriving_, 1)));
  const bool right = arriving_.own_sum == arriving_.right_own_sum() && arriving_.length > 0 &&
                     arriving_.length <= most_bytes;
  check<CommError>(right, "the head of a frame was changed on the way: {} bytes, checksum {:#010x}",
                   arriving_.length, arriving_.own_sum);
  wanted_ = arriving_.length;
  sum_ = 0;
}

std::size_t CheckedStream::take(std::span<std::byte> bytes) {
  const std::size_t count = std::min(bytes.size(), buffered());
  std::memcpy(bytes.data(), buffer_.data() + begin_, count);
  begin_ += count;
  return count;
}

}  // namespace lockstep::dist
