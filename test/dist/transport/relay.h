#pragma once
/// Somebody between two ranks who passes their bytes on, and changes some.

#include <functional>
#include <vector>

#include "lockstep/dist/transport/tcp/frame_seal.h"
#include "support/bad_cable.h"

namespace lockstep::dist::testing {

using test::connected_pair;
using test::pass_on;
using test::SocketPair;

using Bytes = std::vector<std::byte>;
constexpr std::size_t frame_head = 64;  // of a CheckedStream: length, tag of the bytes, own tag
constexpr std::size_t tag_at = 32, own_tag_at = 48;

/// Passes on whole frames of a CheckedStream: `change` makes of frame number n what is sent in its
/// place.
inline void pass_on_frames(int from, int to,
                           const std::function<Bytes(std::size_t n, const Bytes& frame)>& change) {
  const Deadline deadline(Seconds(20));
  for (std::size_t n = 0;; ++n) {
    Bytes frame(frame_head);
    if (receive_all(from, frame, deadline) != Transfer::done) break;
    std::uint32_t length = 0;
    std::memcpy(&length, frame.data(), sizeof length);
    frame.resize(frame_head + length);
    if (receive_all(from, std::span(frame).subspan(frame_head), deadline) != Transfer::done) break;
    if (send_all(to, change(n, frame), deadline) != Transfer::done) break;
  }
  ::shutdown(to, SHUT_WR);
}

/// Makes both tags of a frame anew, with the next two keys.
inline void seal_again(Bytes& frame, KeyStream& keys) {
  const Token head_key = keys.next();
  const Tag tag = FrameSealer(keys).seal(keys.next(), std::span(frame).subspan(frame_head));
  std::memcpy(frame.data() + tag_at, tag.data(), tag.size());
  const Tag own = seal(head_key, std::span(frame).first(own_tag_at));
  std::memcpy(frame.data() + own_tag_at, own.data(), own.size());
}

}  // namespace lockstep::dist::testing
