// EpochPlan against its definition: which positions are dealt, from where, and in how many steps.

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "lockstep/data/sampler.h"

namespace lockstep::data {
namespace {

using Positions = std::vector<std::int64_t>;

struct Epoch {
  std::int64_t n;
  LoaderOptions options;
  int world;

  /// How many positions there are, those of samples that are repeated included.
  std::int64_t dealt() const {
    if (!options.padded) return n;
    const std::int64_t whole = n / world, rest = n % world;
    return (options.drop_last || rest == 0 ? whole : whole + 1) * world;
  }
  std::vector<EpochPlan> plans() const {
    std::vector<EpochPlan> result;
    for (int rank = 0; rank < world; ++rank) result.emplace_back(n, options, Shard{rank, world});
    return result;
  }
};

/// Every position from `begin` on is taken by one rank, in order of steps; none, and no step, is
/// left where a run has taken all.
void check_epoch(const Epoch& epoch) {
  const auto& [n, options, world] = epoch;
  CAPTURE(n);
  CAPTURE(world);
  CAPTURE(options.batch);
  CAPTURE(options.total_batch);
  CAPTURE(options.padded);
  CAPTURE(options.drop_last);
  CAPTURE(options.begin);
  CAPTURE(options.lanes);
  const std::vector<EpochPlan> plans = epoch.plans();
  const std::int64_t steps = plans[0].steps();
  std::int64_t at = options.begin;
  CHECK((steps > 0) == (at < epoch.dealt()));
  for (std::int64_t step = 0; step < steps; ++step) {
    const std::int64_t end = plans[0].end(step);
    CHECK(end > at);
    const std::int64_t whole = options.total_batch > 0 ? options.total_batch
                               : options.lanes > 0     ? options.batch
                                                       : options.batch * world;
    if (step + 1 < steps)
      CHECK(end - at == whole);
    else
      CHECK(end - at <= whole);
    Positions expected, taken;
    for (std::int64_t p = at; p < end; ++p) expected.push_back(p % n);
    for (const EpochPlan& plan : plans) {
      REQUIRE(plan.steps() == steps);
      REQUIRE(plan.end(step) == end);
      CHECK(plan.weight(step).local == static_cast<double>(plan.rows(step)));
      CHECK(plan.weight(step).total == static_cast<double>(end - at));
      CHECK(plan.weight(step).lanes == options.lanes);
      for (std::int64_t row = 0; row < plan.rows(step); ++row)
        taken.push_back(plan.position(step, row));
    }
    std::ranges::sort(expected);
    std::ranges::sort(taken);
    CHECK(taken == expected);
    at = end;
  }
  CHECK(at == std::max(epoch.dealt(), options.begin));
}

}  // namespace

TEST_CASE("sampler: from any begin on, every position that is left is taken once") {
  for (const std::int64_t n : {1, 2, 5, 12, 23})
    for (const int world : {1, 2, 3, 5})
      for (const std::int64_t batch : {1, 3, 100})
        for (std::int64_t begin = 0; begin <= n; ++begin) {
          check_epoch({n, {.batch = batch, .begin = begin}, world});
          check_epoch({n, {.batch = 2, .total_batch = batch, .begin = begin}, world});
          check_epoch({n, {.batch = batch, .begin = begin, .lanes = 8}, world});
          check_epoch({n, {.batch = 2, .total_batch = batch, .begin = begin, .lanes = 8}, world});
          if (batch != 1) continue;
          constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
          check_epoch({n, {.total_batch = most, .begin = begin}, world});
          check_epoch({n, {.batch = most / world, .begin = begin}, world});
        }
}

TEST_CASE("sampler: what cannot be dealt is refused, each by what it is") {
  const auto refused = [](LoaderOptions options, const char* text) {
    CHECK_THROWS_WITH_AS(EpochPlan(10, options, {0, 2}), doctest::Contains(text), UsageError);
  };
  refused({.batch = 0}, "batch size 0");
  refused({.total_batch = -1}, "total batch size -1");
  refused({.begin = -1}, "begin -1 of 10");
  refused({.begin = 11}, "begin 11 of 10");
  refused({.padded = true, .begin = -1}, "begin -1 of 10");
  refused({.drop_last = true}, "drop_last needs padded");
  refused({.padded = true, .lanes = 8}, "lanes take every sample once");
  refused({.lanes = 1}, "at least 2 are needed");
  refused({.lanes = 3}, "a power of two");
}

TEST_CASE("sampler: padded, a run may have taken more than this world deals: nothing is left") {
  for (const std::int64_t n : {0, 1, 2, 5, 12, 23})
    for (const int world : {1, 2, 3, 5})
      for (const bool drop_last : {false, true})
        for (std::int64_t begin = 0; begin <= n + 9; ++begin) {
          const LoaderOptions options{
              .batch = 2, .padded = true, .drop_last = drop_last, .begin = begin};
          check_epoch({n, options, world});
          LoaderOptions total = options;
          total.total_batch = 3;
          check_epoch({n, total, world});
        }
}

}  // namespace lockstep::data
