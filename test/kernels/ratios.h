#pragma once
/// How long kernels take in times of each other. No test asserts how long one takes: machines
/// differ, and are busy. But a kernel that is not vectorized, or reads memory in a bad order, takes
/// tens of times as long as it should in times of a copy, on every machine. The limits are four
/// times what was measured, or more; what is measured is the fastest of many short runs, in turns;
/// and one good turn of several is enough.

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "kernels/support.h"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/formulas/elementary.h"

namespace lockstep::test {

struct Timed {
  std::string name;
  double limit;  ///< in times of a copy
  std::function<void()> run;
  double least = 1e9;  ///< in times of a copy
};

/// Whether functions are compiled as users run them: for the CPU, vectorized.
inline bool worth_timing() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return false;
#endif
  return on_cpu() && kernels::elementary::fused;
}

inline double seconds_of(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Checks the limits, in times of a copy of x to out. With LOCKSTEP_SHOW_RATIOS in the environment
/// it prints what was measured.
inline void check_ratios(const Tensor& x, const Tensor& out, std::vector<Timed> all) {
  for (int attempt = 0; attempt < 6; ++attempt) {
    double copy = 1;
    std::vector<double> fastest(all.size(), 1);
    for (int turn = 0; turn < 15; ++turn) {
      copy = std::min(copy, seconds_of([&] { kernels::scale(1, x, out, false); }));
      for (std::size_t i = 0; i < all.size(); ++i)
        if (all[i].least > all[i].limit) fastest[i] = std::min(fastest[i], seconds_of(all[i].run));
    }
    for (std::size_t i = 0; i < all.size(); ++i)
      if (all[i].least > all[i].limit) all[i].least = fastest[i] / copy;
  }
  for (const Timed& one : all) {
    CHECK_MESSAGE(one.least <= one.limit, one.name, " takes ", one.least,
                  " times as long as a copy");
    if (std::getenv("LOCKSTEP_SHOW_RATIOS")) MESSAGE(one.name, ": ", one.least);
  }
}

}  // namespace lockstep::test
