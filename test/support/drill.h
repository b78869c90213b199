#pragma once
/// A drill is a randomized test: a test case named "drill NAME: ...", which calls drill(). The
/// suite runs a few seeds; `./lockstep drill NAME --runs N` runs many, `--seed S` begins at another
/// one.

#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace lockstep::test {

/// What `./lockstep drill` shows of a drill, on stderr: what begins, every 10 s how far it is, and
/// the end. Says nothing in the suite. A drill that fails ends the test case (--abort-after): then
/// the end names the seed.
class DrillReport {
 public:
  DrillReport(std::uint64_t first, std::uint64_t runs)
      : shown_(std::getenv("LOCKSTEP_RUNS") != nullptr), runs_(runs) {
    if (shown_)
      std::fprintf(stderr, "drill: %llu runs, seeds %llu to %llu, until one fails\n", number(runs),
                   number(first), number(first + runs - 1));
  }
  ~DrillReport() {
    if (!shown_) return;
    if (ended_ == runs_)
      std::fprintf(stderr, "drill: all %llu runs passed, in %.0f s\n", number(runs_), seconds());
    else
      std::fprintf(stderr,
                   "drill: seed %llu failed, after %llu runs that passed: --runs 1 --seed "
                   "%llu repeats it\n",
                   number(seed_), number(ended_), number(seed_));
  }
  DrillReport(const DrillReport&) = delete;
  DrillReport& operator=(const DrillReport&) = delete;

  void begins(std::uint64_t seed) { seed_ = seed; }
  void ended() {
    ++ended_;
    if (!shown_ || seconds() < told_ + 10) return;
    told_ = seconds();
    std::fprintf(stderr, "drill: %llu of %llu runs passed, %.0f s\n", number(ended_), number(runs_),
                 told_);
  }

 private:
  static unsigned long long number(std::uint64_t n) { return n; }
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  bool shown_;
  std::uint64_t runs_, seed_ = 0, ended_ = 0;
  double told_ = 0;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Calls run(seed) for `few` seeds from 0 on, and fails the test with the seed if it throws. The
/// variables LOCKSTEP_RUNS and LOCKSTEP_SEED change how many there are, and the first. Returns how
/// many it ran.
template <class Run>
std::uint64_t drill(std::uint64_t few, Run&& run) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  few = few / 5 + 1;  // each takes some ten times as long
#endif
  const auto variable = [](const char* name, std::uint64_t absent) {
    const char* text = std::getenv(name);
    return text ? std::strtoull(text, nullptr, 10) : absent;
  };
  const std::uint64_t first = variable("LOCKSTEP_SEED", 0), runs = variable("LOCKSTEP_RUNS", few);
  DrillReport report(first, runs);
  for (std::uint64_t seed = first; seed < first + runs; ++seed) {
    INFO("seed ", seed);
    report.begins(seed);
    CHECK_NOTHROW(run(seed));
    report.ended();
  }
  return runs;
}

}  // namespace lockstep::test
