#pragma once
/// A connection between two ranks on which one bit changes.

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <thread>
#include <utility>

#include "lockstep/dist/rendezvous/socket.h"

namespace lockstep::test {

struct SocketPair {
  dist::Descriptor one, two;
};
inline SocketPair connected_pair() {
  int ends[2];
  dist::checked(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends),
                "connect");
  return {dist::Descriptor(ends[0]), dist::Descriptor(ends[1])};
}

constexpr std::size_t nowhere = ~std::size_t{0};

/// Passes on all bytes from one socket to the other until the first ends. Bit `bit` of byte number
/// `at` is flipped. `passed`: how many it were.
inline void pass_on(int from, int to, std::size_t at = nowhere, int bit = 0,
                    std::atomic<std::size_t>* passed = nullptr) {
  std::array<std::byte, 8192> bytes;
  std::size_t before = 0;
  const dist::Deadline deadline(dist::Seconds(20));
  while (dist::wait_for(from, POLLIN, deadline)) {
    const std::ptrdiff_t got = dist::receive_some(from, bytes);
    if (got == dist::peer_closed) break;
    const auto count = static_cast<std::size_t>(got);
    if (at >= before && at < before + count) bytes[at - before] ^= std::byte(1 << bit);
    before += count;
    if (passed) *passed = before;
    const auto part = std::span(bytes).first(count);
    if (dist::send_all(to, part, deadline) != dist::Transfer::done) break;
  }
  ::shutdown(to, SHUT_WR);
}

/// Two ends and what lies between them. Of the bytes from `near` to `far` number `at` has bit `bit`
/// flipped. It works while it lives.
class BadCable {
 public:
  explicit BadCable(std::size_t at, int bit = 0)
      : there_([this, at, bit] { pass_on(near_.two.get(), far_.one.get(), at, bit, &passed_); }),
        back_([this] { pass_on(far_.one.get(), near_.two.get()); }) {}

  dist::Descriptor take_near() { return std::move(near_.one); }
  dist::Descriptor take_far() { return std::move(far_.two); }
  std::size_t passed() const { return passed_; }  ///< bytes from `near` up to now

 private:
  SocketPair near_ = connected_pair(), far_ = connected_pair();
  std::atomic<std::size_t> passed_{0};
  std::jthread there_, back_;  // the last members: they end first
};

}  // namespace lockstep::test
