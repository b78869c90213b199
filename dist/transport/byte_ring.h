#pragma once
/// A bounded byte stream from one producer to one consumer over memory that both can reach: threads
/// of a process, or processes that map the same pages. Lock-free; nothing here ever waits.
///
///     written ------------------v          written: bytes ever put in; only the producer stores it
///   [ . . . | b y t e s . . . . | . . . ]  read: bytes ever taken; only the consumer stores it
///     read ---^                            the byte with number i lies at i mod capacity
///
/// Each side keeps a copy of the other side's counter in its own handle and looks at the real one
/// only when the copy says that nothing can be done: so a cache line travels once per batch, not
/// per call.
///
/// Trust: counters come from memory that the peer writes, so no number of bytes is derived from
/// them without being bounded by the capacity, which is kept outside of that memory.
///
/// Thread-safety: one thread writes through its handle, another reads through its own.

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>

namespace lockstep::dist {

class ByteRing {
 public:
  /// Memory for a ring of `capacity` bytes (a power of two); it must be aligned to a cache line.
  static constexpr std::size_t bytes_needed(std::size_t capacity) {
    return sizeof(Counters) + capacity;
  }

  /// Makes an empty ring in `memory`. Zeroed memory is an empty ring already.
  static void format(void* memory) { new (memory) Counters{}; }

  ByteRing() = default;
  /// A handle on the ring in `memory`, which must outlive it. One for each side.
  ByteRing(void* memory, std::size_t capacity)
      : counters_(static_cast<Counters*>(memory)),
        bytes_(static_cast<std::byte*>(memory) + sizeof(Counters)),
        capacity_(capacity),
        mine_(0),
        seen_(0) {}

  /// Producer: puts in as many bytes as fit and returns their number.
  std::size_t write(std::span<const std::byte> from) {
    std::size_t room = capacity_ - static_cast<std::size_t>(mine_ - seen_);
    if (room < from.size()) {
      seen_ = counters_->read.load(std::memory_order_acquire);
      room = capacity_ - std::min(capacity_, static_cast<std::size_t>(mine_ - seen_));
    }
    const std::size_t count = std::min(room, from.size());
    if (count == 0) return 0;
    const std::size_t at = static_cast<std::size_t>(mine_) & (capacity_ - 1);
    const std::size_t first = std::min(count, capacity_ - at);
    std::memcpy(bytes_ + at, from.data(), first);
    std::memcpy(bytes_, from.data() + first, count - first);
    mine_ += count;
    counters_->written.store(mine_, std::memory_order_release);
    return count;
  }

  /// Consumer: takes as many bytes as there are, at most to.size(), and returns their number.
  std::size_t read(std::span<std::byte> to) {
    if (to.empty()) return 0;
    if (seen_ == mine_) seen_ = counters_->written.load(std::memory_order_acquire);
    const std::size_t there = std::min(capacity_, static_cast<std::size_t>(seen_ - mine_));
    const std::size_t count = std::min(there, to.size());
    if (count == 0) return 0;
    const std::size_t at = static_cast<std::size_t>(mine_) & (capacity_ - 1);
    const std::size_t first = std::min(count, capacity_ - at);
    std::memcpy(to.data(), bytes_ + at, first);
    std::memcpy(to.data() + first, bytes_, count - first);
    mine_ += count;
    counters_->read.store(mine_, std::memory_order_release);
    return count;
  }

 private:
  struct Counters {
    alignas(64) std::atomic<std::uint64_t> written{0};
    alignas(64) std::atomic<std::uint64_t> read{0};
  };
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

  Counters* counters_ = nullptr;
  std::byte* bytes_ = nullptr;
  std::size_t capacity_ = 0;
  std::uint64_t mine_ = 0;  // the counter that this side stores
  std::uint64_t seen_ = 0;  // the last known value of the other side's
};

/// Where the ring from one rank to another lies among those of all pairs of `ranks` ranks: 0->1,
/// 0->2, ..., n-1->n-2. Nobody has one to itself.
constexpr std::size_t stream_number(std::size_t ranks, int from, int to) {
  return static_cast<std::size_t>(from) * (ranks - 1) +
         static_cast<std::size_t>(to < from ? to : to - 1);
}

/// Capacity of each stream between `ranks` ranks of one machine: 256 KiB, less where all of them
/// would add up to more than 64 MiB, at least 4 KiB. A power of two.
constexpr std::size_t stream_capacity(std::size_t ranks) {
  const std::size_t streams = ranks < 2 ? 1 : ranks * (ranks - 1);
  const std::size_t share = (std::size_t{64} << 20) / streams;
  return std::clamp(std::bit_floor(share), std::size_t{4} << 10, std::size_t{256} << 10);
}

}  // namespace lockstep::dist
