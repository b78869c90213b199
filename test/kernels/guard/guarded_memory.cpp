#include "kernels/guard/guarded_memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <new>

namespace lockstep::test {
namespace {

constexpr std::size_t page = 4096;
thread_local bool guarded = false;

struct Arrays {
  std::mutex mutex;
  std::map<void*, std::unique_ptr<GuardedMemory>> all;
};
Arrays& arrays() {
  static Arrays& of_all_threads = *new Arrays;  // threads may end after main
  return of_all_threads;
}

std::size_t rounded_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

GuardedMemory::GuardedMemory(std::size_t bytes, bool from_end)
    : mapped_(rounded_up(bytes, page) + 2 * page) {
  void* const pages =
      ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) throw std::bad_alloc();
  pages_ = static_cast<std::byte*>(pages);
  ::mprotect(pages_, page, PROT_NONE);
  ::mprotect(pages_ + mapped_ - page, page, PROT_NONE);
  data_ = from_end ? pages_ + mapped_ - page - bytes : pages_ + page;
}

GuardedMemory::~GuardedMemory() { ::munmap(pages_, mapped_); }

GuardedArrays::GuardedArrays() { guarded = true; }
GuardedArrays::~GuardedArrays() { guarded = false; }

}  // namespace lockstep::test

void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  using namespace lockstep::test;
  const std::size_t to = static_cast<std::size_t>(alignment), all = rounded_up(bytes, to);
  if (!guarded) {
    if (void* const memory = std::aligned_alloc(to, all > 0 ? all : to)) return memory;
    throw std::bad_alloc();
  }
  auto memory = std::make_unique<GuardedMemory>(all);
  void* const data = memory->data();
  const std::lock_guard lock(arrays().mutex);
  arrays().all[data] = std::move(memory);
  return data;
}

void operator delete[](void* memory, std::align_val_t) noexcept {
  using namespace lockstep::test;
  {
    const std::lock_guard lock(arrays().mutex);
    if (arrays().all.erase(memory) > 0) return;
  }
  std::free(memory);
}

void operator delete[](void* memory, std::size_t, std::align_val_t alignment) noexcept {
  ::operator delete[](memory, alignment);
}
