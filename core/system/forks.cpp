#include "lockstep/core/system/forks.h"

#include <pthread.h>

#include <atomic>

namespace lockstep {
namespace {

std::atomic<int> count{0};
// From the start of the program on. If there is no memory for it, children do not count.
[[maybe_unused]] const int registered =
    ::pthread_atfork(nullptr, nullptr, [] { count.fetch_add(1, std::memory_order_relaxed); });

}  // namespace

int forks() noexcept { return count.load(std::memory_order_relaxed); }

}  // namespace lockstep
