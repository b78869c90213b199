#pragma once
/// A caching allocator for host memory. Fresh pages cost a fault each, and a training step asks for
/// the same sizes every time: freed blocks wait in a list per size class and are handed out again.
/// Size classes grow by a quarter (four per power of two), so at most a fifth of a block is unused;
/// from 2 MiB on, blocks are whole huge pages. Thread-safe; a thread may free a block that another
/// thread allocated.

#include <cstddef>
#include <cstdint>

namespace lockstep::memory {

/// False in builds with AddressSanitizer: a cache would hide overruns and uses after release from
/// it.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool caching = false;
#else
inline constexpr bool caching = true;
#endif

/// The largest block that allocate() tries to get.
inline constexpr std::size_t largest = std::size_t{1} << 62;

/// A block of at least `bytes` bytes, aligned to 64, contents undefined. It is the caller's until
/// release(). Never null, also for 0 bytes. Throws MemoryError, with the number of bytes, when the
/// operating system gives no memory, and for more than `largest` bytes.
void* allocate(std::size_t bytes);
/// Takes a block back. `block` comes from allocate(), with the same `bytes`; not null.
void release(void* block, std::size_t bytes) noexcept;

struct Statistics {
  std::uint64_t system_allocations;  ///< how often the operating system was asked, since the start
  std::size_t live_bytes;            ///< handed out and not yet released
  std::size_t cached_bytes;          ///< waiting in the lists
};
Statistics statistics();

}  // namespace lockstep::memory
