#include "lockstep/data/sampler.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "lockstep/core/generator.h"

namespace lockstep::data {
namespace {

using Json = nlohmann::json;
using Indices = std::vector<std::int64_t>;

Indices positions_of(const EpochPlan& plan, std::int64_t step) {
  Indices result;
  for (std::int64_t row = 0; row < plan.rows(step); ++row)
    result.push_back(plan.position(step, row));
  return result;
}

Indices positions_of(const EpochPlan& plan) {
  Indices result;
  for (std::int64_t step = 0; step < plan.steps(); ++step)
    std::ranges::copy(positions_of(plan, step), std::back_inserter(result));
  return result;
}

std::uint64_t hash_of(const Indices& indices) {
  std::uint64_t hash = 0;
  for (std::int64_t index : indices) hash = hash * 1000003 + static_cast<std::uint64_t>(index);
  return hash;
}

TEST_CASE("sampler: padded plans take the indices of PyTorch's DistributedSampler") {
  const Json reference = Json::parse(std::ifstream(LOCKSTEP_TEST_DATA "/sampler.json"));
  REQUIRE(reference["cases"].size() == 360);
  for (const Json& c : reference["cases"]) {
    CAPTURE(c.dump());
    const std::int64_t n = c["n"];
    const Tensor order = epoch_permutation(n, c["shuffle"], c["seed"], c["epoch"]);
    for (int rank = 0; rank < c["world"]; ++rank) {
      const LoaderOptions options{.batch = 3, .padded = true, .drop_last = c["drop_last"]};
      Indices got = positions_of(EpochPlan(n, options, {rank, c["world"]}));
      for (std::int64_t& index : got)
        index = order.data<std::int64_t>()[static_cast<std::size_t>(index)];
      const Json& expected = c["ranks"][static_cast<std::size_t>(rank)];
      REQUIRE(got.size() == expected["count"].get<std::size_t>());
      CHECK(hash_of(got) == expected["hash"].get<std::uint64_t>());
      got.resize(std::min<std::size_t>(got.size(), 5));
      CHECK(got == expected["first"].get<Indices>());
    }
  }
}

TEST_CASE("sampler: the exact partition is one process's batches, cut among the ranks") {
  for (std::int64_t n : {0, 1, 2, 5, 23, 64, 97})
    for (int world : {1, 2, 3, 4, 7})
      for (std::int64_t batch : {1, 3, 8, 100}) {
        CAPTURE(n);
        CAPTURE(world);
        CAPTURE(batch);
        const EpochPlan whole(n, {.batch = batch * world}, {0, 1});
        const std::int64_t share = (n + world - 1) / world;
        std::int64_t seen = 0;
        for (std::int64_t step = 0; step < whole.steps(); ++step) {
          Indices together;
          double local = 0;
          for (int rank = 0; rank < world; ++rank) {
            const EpochPlan plan(n, {.batch = batch}, {rank, world});
            REQUIRE(plan.steps() == (share + batch - 1) / batch);
            REQUIRE(plan.steps() == whole.steps());
            const Indices mine = positions_of(plan, step);
            CHECK(mine.size() <= static_cast<std::size_t>(batch));
            for (std::int64_t position : mine) CHECK(position % world == rank);
            CHECK(plan.weight(step).local == static_cast<double>(mine.size()));
            CHECK(plan.weight(step).total == static_cast<double>(whole.rows(step)));
            local += plan.weight(step).local;
            std::ranges::copy(mine, std::back_inserter(together));
          }
          CHECK(local == whole.weight(step).total);
          std::ranges::sort(together);
          CHECK(together == positions_of(whole, step));
          seen += static_cast<std::int64_t>(together.size());
        }
        CHECK(seen == n);  // and, being sorted ranges one after another, each exactly once
        Indices all(static_cast<std::size_t>(n));
        for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int64_t>(i);
        CHECK(positions_of(whole) == all);
      }
}

TEST_CASE("sampler: a total batch is the same step for any number of ranks") {
  for (std::int64_t n : {0, 1, 5, 64, 97})
    for (int world : {1, 2, 3, 4, 7})
      for (std::int64_t total : {1, 3, 8, 48, 100}) {
        CAPTURE(n);
        CAPTURE(world);
        CAPTURE(total);
        const EpochPlan alone(n, {.batch = total}, {0, 1});
        for (std::int64_t step = 0; step < alone.steps(); ++step) {
          Indices together;
          for (int rank = 0; rank < world; ++rank) {
            const EpochPlan plan(n, {.total_batch = total}, {rank, world});
            REQUIRE(plan.steps() == alone.steps());
            const Indices mine = positions_of(plan, step);
            const std::int64_t first = step * std::min(total, std::max(n, std::int64_t{1}));
            for (std::int64_t position : mine) CHECK((position - first) % world == rank);
            // So that a recorded step fits: a rank's share is that of the first step.
            if (step + 1 < alone.steps()) CHECK(plan.rows(step) == plan.rows(0));
            const auto fair = static_cast<std::size_t>(total / world);
            CHECK(mine.size() <= fair + 1);
            if (step + 1 < alone.steps()) CHECK(mine.size() >= fair);
            CHECK(plan.weight(step).local == static_cast<double>(mine.size()));
            CHECK(plan.weight(step).total == alone.weight(step).total);
            std::ranges::copy(mine, std::back_inserter(together));
          }
          std::ranges::sort(together);
          CHECK(together == positions_of(alone, step));
        }
      }
  const std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  CHECK(EpochPlan(5, {.total_batch = huge}, {1, 2}).rows(0) == 2);
  CHECK_THROWS_WITH_AS(EpochPlan(5, {.total_batch = -1}, {0, 1}),
                       "[sampler] total batch size -1; 0 or more is needed", UsageError);
}

TEST_CASE("sampler: what begins in the middle takes the rest, once, on any number of ranks") {
  for (const std::int64_t n : {0, 1, 7, 24, 25})
    for (const int world : {1, 2, 3, 4, 7})
      for (const std::int64_t begin : {std::int64_t{0}, std::int64_t{1}, n / 2, n - 1, n})
        for (const LoaderOptions options :
             {LoaderOptions{.batch = 2}, LoaderOptions{.batch = 3, .total_batch = 5}}) {
          if (begin < 0 || begin > n) continue;
          CAPTURE(n);
          CAPTURE(world);
          CAPTURE(begin);
          LoaderOptions rest = options;
          rest.begin = begin;
          Indices all;
          for (int rank = 0; rank < world; ++rank)
            std::ranges::copy(positions_of(EpochPlan(n, rest, {rank, world})),
                              std::back_inserter(all));
          std::ranges::sort(all);
          CHECK(static_cast<std::int64_t>(all.size()) == n - begin);
          for (std::size_t i = 0; i < all.size(); ++i)
            CHECK(all[i] == begin + static_cast<std::int64_t>(i));
        }
}

TEST_CASE("sampler: a plan that begins at the end of a step goes on as the whole one") {
  for (const bool padded : {false, true})
    for (const LoaderOptions options :
         {LoaderOptions{.batch = 2, .padded = padded},
          LoaderOptions{.total_batch = 5, .padded = padded},
          LoaderOptions{.batch = 2, .padded = padded, .drop_last = padded}})
      for (const int world : {1, 2, 3})
        for (int rank = 0; rank < world; ++rank) {
          const EpochPlan whole(23, options, {rank, world});
          for (std::int64_t step = 0; step < whole.steps(); ++step) {
            LoaderOptions later = options;
            later.begin = whole.end(step);
            const EpochPlan rest(23, later, {rank, world});
            REQUIRE(rest.steps() == whole.steps() - step - 1);
            for (std::int64_t i = 0; i < rest.steps(); ++i)
              CHECK(positions_of(rest, i) == positions_of(whole, step + 1 + i));
          }
        }
  CHECK_THROWS_AS(EpochPlan(5, {.begin = 6}, {}), UsageError);
  CHECK_THROWS_AS(EpochPlan(5, {.begin = -1}, {}), UsageError);
}

TEST_CASE("sampler: a rank may have an empty last batch") {
  // 5 samples, 4 ranks, batches of 1: two steps; only rank 0 has a sample in the second.
  for (int rank = 0; rank < 4; ++rank) {
    const EpochPlan plan(5, {.batch = 1}, {rank, 4});
    CHECK(plan.steps() == 2);
    CHECK(plan.rows(0) == 1);
    CHECK(plan.weight(0).total == 4);
    CHECK(plan.rows(1) == (rank == 0 ? 1 : 0));
    CHECK(plan.weight(1).total == 1);
  }
}

TEST_CASE("sampler: padded plans weigh every rank alike") {
  for (int rank = 0; rank < 3; ++rank) {
    const EpochPlan plan(10, {.batch = 3, .padded = true}, {rank, 3});
    CHECK(plan.steps() == 2);
    CHECK(plan.weight(0).local == 3);
    CHECK(plan.weight(0).total == 9);
    CHECK(plan.weight(1).local == 1);
    CHECK(plan.weight(1).total == 3);
  }
}

TEST_CASE("sampler: without shuffling the order is that of the data set") {
  CHECK(epoch_permutation(4, false, 9, 3).to_vector<std::int64_t>() == Indices{0, 1, 2, 3});
  CHECK(epoch_permutation(0, false, 0, 0).numel() == 0);
  CHECK(epoch_permutation(0, true, 0, 0).numel() == 0);
}

TEST_CASE("sampler: seed and epoch add up, beyond 2^64 as well") {
  const auto order = [](std::uint64_t seed, int epoch) {
    return epoch_permutation(20, true, seed, epoch).to_vector<std::int64_t>();
  };
  CHECK(order(3, 4) == order(7, 0));
  CHECK(order(3, 4) != order(3, 5));
  CHECK(order(3, 4) == Generator(7).randperm(20).to_vector<std::int64_t>());
  CHECK(order(std::numeric_limits<std::uint64_t>::max(), 6) == order(5, 0));
}

TEST_CASE("sampler: a batch of any size is allowed") {
  const std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  const EpochPlan plan(5, {.batch = huge}, {1, 2});
  CHECK(plan.steps() == 1);
  CHECK(plan.rows(0) == 2);
  CHECK(plan.weight(0).total == 5);
  CHECK(EpochPlan(0, {.batch = huge}, {1, 2}).steps() == 0);
}

TEST_CASE("sampler: arguments that make no sense") {
  CHECK_THROWS_WITH_AS(EpochPlan(5, {.batch = 0}, {0, 1}),
                       "[sampler] batch size 0; at least 1 is needed", UsageError);
  CHECK_THROWS_AS(EpochPlan(5, {.batch = -3}, {0, 1}), UsageError);
  CHECK_THROWS_AS(EpochPlan(-1, {}, {0, 1}), UsageError);
  CHECK_THROWS_WITH_AS(EpochPlan(5, {}, {2, 2}), "[sampler] there is no rank 2 of 2", UsageError);
  CHECK_THROWS_AS(EpochPlan(5, {}, {-1, 2}), UsageError);
  CHECK_THROWS_AS(EpochPlan(5, {}, {0, 0}), UsageError);
  CHECK_THROWS_AS(EpochPlan(5, {.drop_last = true}, {0, 1}), UsageError);
  CHECK_THROWS_AS(epoch_permutation(5, true, 0, -1), UsageError);
  CHECK_THROWS_AS(epoch_permutation(-5, true, 0, 0), UsageError);
  CHECK_THROWS_AS(epoch_permutation(-5, false, 0, 0), Error);
}

}  // namespace
}  // namespace lockstep::data
