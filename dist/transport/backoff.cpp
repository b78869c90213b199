#include "lockstep/dist/transport/backoff.h"

#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lockstep::dist {

namespace {

constexpr unsigned spin_rounds = 1000;  // about 100 us, with the tries to move bytes in between
constexpr unsigned rounds_per_yield = 32;
constexpr unsigned yield_rounds = 500;
constexpr auto shortest_nap = std::chrono::microseconds(5);
constexpr auto longest_nap = std::chrono::microseconds(500);

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

// By default the kernel may end naps 50 us late, to wake up less often. The thread is the
// program's: its own naps, and those of what it starts, stay as they were.
void nap(std::chrono::microseconds time) {
  const int before = ::prctl(PR_GET_TIMERSLACK, 0UL, 0UL, 0UL, 0UL);  // ns
  ::prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
  std::this_thread::sleep_for(time);
  if (before > 0) ::prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(before), 0UL, 0UL, 0UL);
}

}  // namespace

int available_cores() {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) == 0) return CPU_COUNT(&cores);
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

Backoff::Backoff(int ranks) : spins_(ranks <= available_cores() ? spin_rounds : 0) {}

bool Backoff::relax(unsigned round) const {
  if (spins(round)) {
    // The peer that this rank waits for may have been put on its core.
    if (round % rounds_per_yield == rounds_per_yield - 1)
      std::this_thread::yield();
    else
      pause();
    return false;
  }
  if (round < spins_ + yield_rounds) {
    std::this_thread::yield();
    return round % 16 == 0;
  }
  const unsigned naps = round - spins_ - yield_rounds;
  nap(std::min(longest_nap, shortest_nap * (1 + naps / 8)));
  return true;
}

}  // namespace lockstep::dist
