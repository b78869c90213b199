#include "lockstep/core/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <mutex>
#include <new>

#include "lockstep/core/error.h"
#include "lockstep/core/system/memory_limits.h"

namespace lockstep::memory {
namespace {

constexpr std::size_t alignment = 64;
constexpr std::size_t huge_page = std::size_t{2} << 20;

struct Class {
  std::size_t index;
  std::size_t bytes;
};

// Quarter steps between powers of two, from 64 bytes on: 64, 80, 96, 112, 128, 160, ...
Class class_of(std::size_t bytes) {
  if (bytes <= alignment) return {0, alignment};
  const int log2 = std::bit_width(bytes - 1) - 1;  // 2^log2 < bytes <= 2^(log2 + 1)
  const std::size_t step = std::size_t{1} << (log2 - 2);
  const std::size_t base = std::size_t{1} << log2;
  const std::size_t quarter = (bytes - base + step - 1) / step;  // 1..4
  return {static_cast<std::size_t>(log2 - 6) * 4 + quarter, base + quarter * step};
}

[[noreturn]] void refuse(std::size_t bytes) {
  fail<MemoryError>("[memory] out of memory: {} bytes were asked for; {}", bytes,
                    describe_available_memory());
}

// At least `bytes`, for a caller that has asked for `asked`.
void* system_allocate(std::size_t bytes, std::size_t asked) {
  const std::size_t align = bytes >= huge_page ? huge_page : alignment;
  const std::size_t rounded = (bytes + align - 1) / align * align;
  void* block = std::aligned_alloc(align, rounded);
  if (!block) refuse(asked);
  // Large matrices miss the TLB on 4 KiB pages; a hint only, so a refusal does not matter.
  if (align == huge_page) (void)::madvise(block, rounded, MADV_HUGEPAGE);
  return block;
}

struct FreeBlock {
  FreeBlock* next;
};

struct Cache {
  std::mutex mutex;
  std::array<FreeBlock*, 240> lists{};
  Statistics statistics{};
};

// Never destroyed: tensors in static storage may be released after any destructor of ours.
Cache& cache() {
  static Cache& instance = *new Cache;
  return instance;
}

}  // namespace

void* allocate(std::size_t bytes) {
  if (bytes > largest) refuse(bytes);
  const Class c = class_of(bytes);
  Cache& all = cache();
  {
    std::lock_guard lock(all.mutex);
    if (FreeBlock* block = all.lists[c.index]) {
      all.lists[c.index] = block->next;
      all.statistics.cached_bytes -= c.bytes;
      all.statistics.live_bytes += c.bytes;
      return block;
    }
  }
  void* block = system_allocate(caching ? c.bytes : std::max(bytes, std::size_t{1}), bytes);
  std::lock_guard lock(all.mutex);
  ++all.statistics.system_allocations;
  all.statistics.live_bytes += c.bytes;
  return block;
}

void release(void* block, std::size_t bytes) noexcept {
  const Class c = class_of(bytes);
  Cache& all = cache();
  std::lock_guard lock(all.mutex);
  all.statistics.live_bytes -= c.bytes;
  if constexpr (!caching) {
    std::free(block);
    return;
  }
  all.lists[c.index] = new (block) FreeBlock{all.lists[c.index]};
  all.statistics.cached_bytes += c.bytes;
}

Statistics statistics() {
  std::lock_guard lock(cache().mutex);
  return cache().statistics;
}

}  // namespace lockstep::memory
