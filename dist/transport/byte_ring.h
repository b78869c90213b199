#pragma once
/// A bounded byte stream from one producer to one consumer over memory that both can reach: threads
/// of a process, or processes that map the same pages. Lock-free; nothing here ever waits.
///
///     written ------------------v          written: bytes ever put in; only the producer stores it
///   [ . . . | b y t e s . . . . | . . . ]  read: bytes ever taken; only the consumer stores it
///     read ---^                            the byte with number i lies at i mod capacity
///
/// Each side keeps a copy of the other side's counter. It reads the real one only when the ring
/// looks full or empty, so the cache line seldom travels between the two cores.
///
/// A faulty peer may store anything in both counters. So every number of bytes is limited by the
/// capacity, which is kept outside of the shared memory.
///
/// Thread-safety: one thread writes through its handle, another reads through its own.

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace lockstep::dist {

class ByteRing {
 public:
  /// Memory for a ring of `capacity` bytes (a power of two). It must be aligned to a cache line;
  /// zeroed memory is an empty ring.
  static constexpr std::size_t bytes_needed(std::size_t capacity) {
    return sizeof(Counters) + (capacity + 63) / 64 * 64;
  }

  ByteRing() = default;
  /// A handle on the ring in `memory`, which must outlive it. Each side has one.
  ByteRing(void* memory, std::size_t capacity)
      : counters_(static_cast<Counters*>(memory)),
        bytes_(static_cast<std::byte*>(memory) + sizeof(Counters)),
        capacity_(capacity) {}

  /// Producer: puts in as many bytes as fit and returns their number.
  std::size_t write(std::span<const std::byte> from) {
    const auto room = [&] {
      return capacity_ - std::min(capacity_, static_cast<std::size_t>(mine_ - seen_));
    };
    if (room() < from.size()) seen_ = counters_->read.load(std::memory_order_acquire);
    const std::size_t count = std::min(room(), from.size());
    if (count == 0) return 0;
    const std::size_t at = static_cast<std::size_t>(mine_) & (capacity_ - 1);
    const std::size_t first = std::min(count, capacity_ - at);
    std::memcpy(bytes_ + at, from.data(), first);
    if (first < count) std::memcpy(bytes_, from.data() + first, count - first);
    mine_ += count;
    counters_->written.store(mine_, std::memory_order_release);
    __builtin_prefetch(bytes_ + (static_cast<std::size_t>(mine_) & (capacity_ - 1)), 1);
    return count;
  }

  /// Consumer: takes as many bytes as there are, at most to.size(), and returns their number.
  std::size_t read(std::span<std::byte> to) {
    if (to.empty()) return 0;
    if (seen_ == mine_) {  // the bytes may come along with the counter
      __builtin_prefetch(bytes_ + (static_cast<std::size_t>(mine_) & (capacity_ - 1)));
      seen_ = counters_->written.load(std::memory_order_acquire);
    }
    const std::size_t there = std::min(capacity_, static_cast<std::size_t>(seen_ - mine_));
    const std::size_t count = std::min(there, to.size());
    if (count == 0) return 0;
    const std::size_t at = static_cast<std::size_t>(mine_) & (capacity_ - 1);
    const std::size_t first = std::min(count, capacity_ - at);
    std::memcpy(to.data(), bytes_ + at, first);
    if (first < count) std::memcpy(to.data() + first, bytes_, count - first);
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
  std::uint64_t mine_ = 0;  // the counter that this side stores: the producer's is `written`
  std::uint64_t seen_ = 0;  // the last known value of the other side's counter
};

}  // namespace lockstep::dist
