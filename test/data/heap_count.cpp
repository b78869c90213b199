#include "data/heap_count.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<long> count{0};
}

void* operator new(std::size_t bytes) {
  ++count;
  if (void* block = std::malloc(bytes ? bytes : 1)) return block;
  throw std::bad_alloc();
}
void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, std::size_t) noexcept { std::free(block); }

namespace lockstep::data {
long heap_allocations() { return count; }
}  // namespace lockstep::data
