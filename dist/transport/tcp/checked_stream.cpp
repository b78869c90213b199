#include "lockstep/dist/transport/tcp/checked_stream.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace lockstep::dist {
namespace {

template <class Head>
std::span<const std::byte> without_own_tag(const Head& head) {
  return std::as_bytes(std::span(&head, 1)).first(offsetof(Head, own_tag));
}

/// The part of the next `count` bytes that lies in `bytes`. `count` becomes the number of the
/// others.
std::span<std::byte> cut(std::span<std::byte> bytes, std::size_t& count) {
  const std::size_t here = std::min(bytes.size(), count);
  count -= here;
  return bytes.first(here);
}

}  // namespace

/// Each frame takes two keys: for its head, for its bytes.
CheckedStream::Leaving CheckedStream::seal(std::span<const std::byte> bytes) {
  bytes = bytes.first(std::min(bytes.size(), most_bytes));
  Leaving frame{.head = {.length = static_cast<std::uint32_t>(bytes.size())},
                .head_left = sizeof(Head),
                .left = bytes.size()};
  const Token head_key = connection_.sending.next();
  frame.head.tag = sealer_.seal(connection_.sending.next(), bytes);
  frame.head.own_tag = sealer_.seal(head_key, without_own_tag(frame.head));
  return frame;
}

std::ptrdiff_t CheckedStream::send(std::span<const std::byte> first,
                                   std::span<const std::byte> second) {
  if (first.empty()) std::swap(first, second);
  if (first.empty()) return 0;
  auto& [now, next] = leaving_;
  if (now.left == 0) now = std::exchange(next, {});
  if (now.left == 0) now = seal(first);
  if (now.left < first.size()) second = {};
  if (next.left == 0 && !second.empty()) next = seal(second);

  const auto head = [](const Leaving& frame) {
    return std::as_bytes(std::span(&frame.head, 1)).last(frame.head_left);
  };
  std::array pieces{head(now), first.first(now.left), std::span<const std::byte>{}, second};
  if (!second.empty()) pieces[2] = head(next), pieces[3] = second.first(next.left);
  const std::ptrdiff_t sent = send_together(pieces);
  if (sent == peer_closed) return sent;

  auto rest = static_cast<std::size_t>(sent);
  std::size_t of_caller = 0;
  for (Leaving* const frame : {&now, &next}) {
    const std::size_t of_head = std::min(rest, frame->head_left);
    frame->head_left -= of_head;
    const std::size_t of_bytes = std::min(rest -= of_head, frame->left);
    frame->left -= of_bytes;
    rest -= of_bytes;
    of_caller += of_bytes;
  }
  return static_cast<std::ptrdiff_t>(of_caller);
}

/// The first few bytes are copied into one piece: the system takes longer for several.
std::ptrdiff_t CheckedStream::send_together(std::span<std::span<const std::byte>> pieces) {
  std::array<std::byte, few_bytes> few;
  std::size_t size = 0, copied = 0;
  for (; copied < pieces.size() && size + pieces[copied].size() <= few.size(); ++copied) {
    std::ranges::copy(pieces[copied], few.begin() + static_cast<std::ptrdiff_t>(size));
    size += pieces[copied].size();
  }
  if (copied == pieces.size()) return send_some(connection_.get(), std::span(few).first(size));
  if (copied > 0) pieces[--copied] = std::span(few).first(size);
  return send_pieces(connection_.get(), pieces.subspan(copied));
}

std::ptrdiff_t CheckedStream::receive(std::span<std::byte> first, std::span<std::byte> second) {
  if (first.empty()) std::swap(first, second);
  if (first.empty()) return 0;
  while (true) {
    if (wanted_ == 0 && buffered() >= sizeof arriving_) {
      take(std::as_writable_bytes(std::span(&arriving_, 1)));
      check_head();
    }
    const std::span<std::byte> of_frame = first.first(std::min(first.size(), wanted_));
    std::ptrdiff_t count = 0;
    if (wanted_ == 0) {
      const bool few = first.size() + second.size() <= few_bytes;
      count = few || buffered() > 0 ? receive_ahead() : receive_frames(first, second);
    } else if (buffered() > 0) {
      count = static_cast<std::ptrdiff_t>(take(of_frame));
      check(of_frame.first(static_cast<std::size_t>(count)));
    } else {
      count = receive_more(of_frame);
    }
    if (count != nothing_yet) return count;
  }
}

/// More of what has been read ahead, of which a head is missing.
std::ptrdiff_t CheckedStream::receive_ahead() {
  std::memmove(ahead_.data(), ahead_.data() + begin_, buffered());
  end_ -= std::exchange(begin_, 0);
  const std::ptrdiff_t got = receive_some(connection_.get(), std::span(ahead_).subspan(end_));
  if (got <= 0) return got;
  end_ += static_cast<std::size_t>(got);
  return nothing_yet;
}

/// More of a frame. Nothing has been read ahead.
std::ptrdiff_t CheckedStream::receive_more(std::span<std::byte> bytes) {
  const std::ptrdiff_t got =
      receive_pieces(connection_.get(), std::array{bytes, behind(bytes.size())});
  if (got <= 0) return got;
  auto rest = static_cast<std::size_t>(got);
  const auto here = cut(bytes, rest);
  begin_ = 0, end_ = rest;
  check(here);
  return static_cast<std::ptrdiff_t>(here.size());
}

/// A frame for the first piece, and one for the second. Nothing has been read ahead.
std::ptrdiff_t CheckedStream::receive_frames(std::span<std::byte> first,
                                             std::span<std::byte> second) {
  if (first.size() > most_bytes) first = first.first(most_bytes), second = {};
  second = second.first(std::min(second.size(), most_bytes));
  Head next;
  const auto head = std::as_writable_bytes(std::span(&arriving_, 1));
  auto next_head = std::as_writable_bytes(std::span(&next, 1));
  if (second.empty()) next_head = {};
  const std::ptrdiff_t got = receive_pieces(
      connection_.get(),
      std::array{head, first, next_head, second, behind(first.size() + second.size())});
  if (got <= 0) return got;
  auto rest = static_cast<std::size_t>(got);
  const auto of_head = cut(head, rest), of_first = cut(first, rest),
             of_next_head = cut(next_head, rest), of_second = cut(second, rest);
  begin_ = 0, end_ = rest;
  if (of_head.size() < sizeof arriving_) {
    keep_ahead({of_head});
    return nothing_yet;
  }
  check_head();
  // A frame of another length: what lies there is given out from what was read ahead.
  if (second.empty() ? wanted_ < of_first.size() : wanted_ != first.size()) {
    keep_ahead({of_first, of_next_head, of_second});
    return nothing_yet;
  }
  check(of_first);
  std::size_t count = of_first.size();
  if (of_next_head.size() < sizeof next) {
    keep_ahead({of_next_head});
    return count > 0 ? static_cast<std::ptrdiff_t>(count) : nothing_yet;
  }
  arriving_ = next;
  check_head();
  const std::size_t in_place = std::min(of_second.size(), wanted_);
  keep_ahead({of_second.subspan(in_place)});
  check(of_second.first(in_place));
  return static_cast<std::ptrdiff_t>(count + in_place);
}

/// These come before what was read ahead.
void CheckedStream::keep_ahead(std::initializer_list<std::span<const std::byte>> pieces) {
  std::size_t more = 0;
  for (const auto piece : pieces) more += piece.size();
  if (more == 0) return;
  ahead_.resize(std::max(ahead_.size(), more + end_));
  std::memmove(ahead_.data() + more, ahead_.data(), end_);
  end_ += more;
  auto to = ahead_.begin();
  for (const auto piece : pieces) to = std::ranges::copy(piece, to).out;
}

void CheckedStream::check_head() {
  const Tag right = checker_.seal(connection_.receiving.next(), without_own_tag(arriving_));
  if (!same(arriving_.own_tag, right))
    fail<CommError>("the head of a frame of {} bytes was changed on the way: its tag is {}, not {}",
                    arriving_.length, hex(arriving_.own_tag), hex(right));
  wanted_ = arriving_.length;
  checker_.begin(connection_.receiving.next(), wanted_);
}

/// What is to be handed out. With the last byte of a frame its tag is checked.
void CheckedStream::check(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  checker_.add(bytes);
  wanted_ -= bytes.size();
  if (wanted_ > 0) return;
  const Tag right = checker_.tag();
  if (!same(arriving_.tag, right))
    fail<CommError>("{} bytes were changed on the way: their tag is {}, not {}", arriving_.length,
                    hex(arriving_.tag), hex(right));
}

/// From what was read ahead.
std::size_t CheckedStream::take(std::span<std::byte> bytes) {
  const std::size_t count = std::min(bytes.size(), buffered());
  std::copy_n(ahead_.data() + begin_, count, bytes.begin());
  begin_ += count;
  return count;
}

}  // namespace lockstep::dist
