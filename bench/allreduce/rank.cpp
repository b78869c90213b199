#include "rank.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <vector>

#include "lockstep/core/error.h"

namespace bench {
namespace {

using lockstep::check;
using Clock = std::chrono::steady_clock;

// mpirun puts each rank on a separate core, if there are enough; here all contenders' ranks stay on
// one. Else the ranks of one may share a core for all rounds of a size, on a busy machine.
void take_core(int rank, int ranks) {
  cpu_set_t cores, own;
  if (::sched_getaffinity(0, sizeof cores, &cores) != 0 || CPU_COUNT(&cores) < ranks) return;
  int core = 0;
  for (int before = rank; !CPU_ISSET(core, &cores) || before-- > 0;) ++core;
  CPU_ZERO(&own);
  CPU_SET(core, &own);
  ::sched_setaffinity(0, sizeof own, &own);
}

// Elements looked at together while verifying.
constexpr std::int64_t chunk = 1 << 18;

// Unique per (rank, index) for up to 8 ranks; the sums stay below 2^24, so they are exact in f32.
float value(int rank, std::int64_t index) { return static_cast<float>(index % 65521 * 8 + rank); }
float sum_of_values(int ranks, std::int64_t index) {
  const int sum_of_ranks = ranks * (ranks - 1) / 2;
  return static_cast<float>(index % 65521 * 8 * ranks + sum_of_ranks);
}

// body(begin, part of the scratch memory) for chunks of `count` elements.
template <class F>
void by_chunks(std::int64_t count, F body) {
  std::vector<float> scratch(static_cast<std::size_t>(std::min(count, chunk)));
  for (std::int64_t begin = 0; begin < count; begin += chunk)
    body(begin, std::span(scratch).first(static_cast<std::size_t>(std::min(chunk, count - begin))));
}

void verify(Engine& engine, std::int64_t count) {
  by_chunks(count, [&](std::int64_t begin, std::span<float> part) {
    for (std::size_t i = 0; i < part.size(); ++i)
      part[i] = value(engine.rank(), begin + static_cast<std::int64_t>(i));
    engine.put(begin, part);
  });
  engine.barrier();
  engine.all_reduce(count);
  engine.finish();
  by_chunks(count, [&](std::int64_t begin, std::span<float> part) {
    engine.get(begin, part);
    for (std::size_t i = 0; i < part.size() && engine.sums(); ++i) {
      const std::int64_t index = begin + static_cast<std::int64_t>(i);
      const float right = sum_of_values(engine.size(), index);
      check<lockstep::Error>(part[i] == right, "rank {}: element {} of {} is {}, not {}",
                             engine.rank(), index, count, part[i], right);
    }
    // Zeros stay zeros, however often they are summed.
    std::ranges::fill(part, 0.0f);
    engine.put(begin, part);
  });
  engine.barrier();  // nobody has found anything wrong
}

double microseconds_per_call(Engine& engine, std::int64_t count, std::int64_t calls) {
  for (std::int64_t i = 0; i <= calls / 10; ++i) engine.all_reduce(count);  // caches are cold
  engine.finish();
  engine.barrier();
  const auto start = Clock::now();
  for (std::int64_t i = 0; i < calls; ++i) engine.all_reduce(count);
  engine.finish();
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count() /
         static_cast<double>(calls);
}

}  // namespace

void store(std::span<float> memory, std::int64_t begin, std::span<const float> values) {
  std::ranges::copy(values, memory.begin() + begin);
}

void load(std::span<const float> memory, std::int64_t begin, std::span<float> values) {
  std::copy_n(memory.begin() + begin, values.size(), values.begin());
}

void serve(Engine& engine, std::string_view name, const std::string& folder) {
  const std::string path = fmt::format("{}/{}", folder, engine.rank());
  std::ifstream turns(path);
  check<lockstep::Error>(turns.good(), "cannot read {}", path);
  const auto answer = [&](const std::string& text) {
    if (engine.rank() == 0) fmt::print("{}\n", text);
    std::fflush(stdout);
  };
  take_core(engine.rank(), engine.size());
  engine.barrier();  // all have opened theirs
  answer(fmt::format("ready {}", name));
  std::string what;
  std::int64_t number = 0, count = 0;
  while (turns >> what >> number) {
    if (what == "verify") {
      count = number;
      verify(engine, count);
      answer(fmt::format("verified {}", count));
    } else {
      answer(fmt::format("us {}", microseconds_per_call(engine, count, number)));
    }
  }
}

}  // namespace bench
