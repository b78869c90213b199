#pragma once
/// A drill is a randomized test: a test case named "drill NAME: ...", which calls drill(). The
/// suite runs a few seeds; `./lockstep drill NAME --runs N` runs many, `--seed S` begins at another
/// one.

#include <doctest/doctest.h>

#include <cstdint>
#include <cstdlib>

namespace lockstep::test {

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
  for (std::uint64_t seed = first; seed < first + runs; ++seed) {
    INFO("seed ", seed);
    CHECK_NOTHROW(run(seed));
  }
  return runs;
}

}  // namespace lockstep::test
