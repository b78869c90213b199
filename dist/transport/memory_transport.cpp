#include "lockstep/dist/transport/memory_transport.h"

#include <ctime>

namespace lockstep::dist {
namespace {

/// The offset at which the ring from rank `from` to rank `to` begins; the two differ. With `from` =
/// size and `to` = 0, the end of all rings.
std::size_t offset_of_ring(int size, std::size_t stream_bytes, int from, int to) {
  const int number = from * (size - 1) + (to < from ? to : to - 1);
  return PresenceBoard::bytes_needed(size) + ByteRing::bytes_needed(stream_bytes) * index(number);
}

}  // namespace

MemoryTransport::MemoryTransport(std::shared_ptr<void> memory, int rank, int size,
                                 std::size_t stream_bytes)
    : presence_(memory.get()),
      memory_(std::move(memory)),
      rank_(rank),
      size_(size),
      backoff_(size) {
  const auto ring = [&](int from, int to) {
    if (from == to) return ByteRing();
    auto* const begin = static_cast<std::byte*>(memory_.get());
    return ByteRing(begin + offset_of_ring(size, stream_bytes, from, to), stream_bytes);
  };
  for (int peer = 0; peer < size; ++peer) {
    out_.push_back(ring(rank, peer));
    in_.push_back(ring(peer, rank));
  }
}

std::size_t MemoryTransport::bytes_needed(int size, std::size_t stream_bytes) {
  return offset_of_ring(size, stream_bytes, size, 0);
}

std::size_t MemoryTransport::send(int peer, std::span<const std::byte> bytes) {
  presence_.check_aborted();
  if (presence_.of(peer) != Presence::here) [[unlikely]]
    presence_.fail_without(peer);
  return out_[index(peer)].write(bytes);
}

std::size_t MemoryTransport::receive(int peer, std::span<std::byte> bytes) {
  presence_.check_aborted();
  ByteRing& ring = in_[index(peer)];
  const std::size_t count = ring.read(bytes);
  if (count > 0 || bytes.empty() || presence_.of(peer) == Presence::here) return count;
  const std::size_t last = ring.read(bytes);  // what it sent between our first look and its leaving
  if (last == 0) presence_.fail_without(peer);
  return last;
}

Seconds MemoryTransport::roughly_now() const {
  timespec time{};  // of the steady clock
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

void MemoryTransport::relax(unsigned round) {
  presence_.check_aborted();
  if (backoff_.relax(round)) look_for_gone_ranks();
}

}  // namespace lockstep::dist
