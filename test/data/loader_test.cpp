#include "lockstep/data/loader.h"

#include <doctest/doctest.h>

#include <iterator>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "lockstep/core/generator.h"
#include "lockstep/core/memory.h"
#include "support/heap_count.h"

namespace lockstep::data {
namespace {

// Sample i has label 100 + i and pixels 1000 i, 1000 i + 1, 1000 i + 2.
TensorDataset dataset_of(std::int64_t n) {
  std::vector<float> pixels;
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < n; ++i) {
    labels.push_back(100 + i);
    for (std::int64_t j = 0; j < 3; ++j) pixels.push_back(static_cast<float>(1000 * i + j));
  }
  return TensorDataset({{"x", Tensor::of({n, 3}, pixels)}, {"y", Tensor::of({n}, labels)}});
}

// The samples of a batch, after a check that its rows and labels belong together.
std::vector<std::int64_t> samples_of(const Batch& batch) {
  const std::int64_t rows = batch.y.numel();
  REQUIRE(batch.x.shape() == Shape{rows, 3});
  std::vector<std::int64_t> result;
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t sample = batch.y.data<std::int64_t>()[i] - 100;
    for (std::int64_t j = 0; j < 3; ++j)
      CHECK(batch.x.data<float>()[3 * i + j] == static_cast<float>(1000 * sample + j));
    result.push_back(sample);
  }
  return result;
}

TEST_CASE("loader: an epoch in order, with a smaller last batch") {
  std::vector<std::vector<std::int64_t>> epoch;
  std::vector<double> weights;
  for (const Batch& batch : Loader(dataset_of(7), {.batch = 3})) {
    epoch.push_back(samples_of(batch));
    weights.push_back(batch.weight.local);
    CHECK(batch.weight.total == batch.weight.local);
  }
  CHECK(epoch == std::vector<std::vector<std::int64_t>>{{0, 1, 2}, {3, 4, 5}, {6}});
  CHECK(weights == std::vector<double>{3, 3, 1});
}

TEST_CASE("loader: any rank gets any lane, with the rows that its owner has") {
  const LoaderOptions options{.batch = 44, .shuffle = true, .lanes = 8};  // of 6 rows, 2 or none
  for (const int ranks : {1, 3, 8})
    for (int rank = 0; rank < ranks; ++rank) {
      const Loader owner(dataset_of(100), options, {rank, ranks}, 2);
      const Loader other(dataset_of(100), options, {7 - rank, 8}, 2);
      for (std::int64_t step = 0; step < owner.steps(); ++step) {
        const Batch batch = owner.batch(step);
        CHECK(batch.step == step);
        for (int k = 0; k < batch.lanes->count(); ++k) {
          const Batch lane = other.lane(step, batch.lanes->first() + k);
          const auto at = static_cast<std::size_t>(k);
          const auto all = samples_of(batch);
          CHECK(samples_of(lane) == std::vector(all.begin() + batch.lanes->offsets()[at],
                                                all.begin() + batch.lanes->offsets()[at + 1]));
          CHECK(lane.lanes->first() == batch.lanes->first() + k);
          CHECK(lane.lanes->count() == 1);
          CHECK(lane.weight.total == batch.weight.total);
          CHECK(lane.weight.local == static_cast<double>(batch.lanes->rows_of(k)));
          CHECK(lane.weight.origin.parts == 0);
        }
      }
      for (const int lane : {-1, 8})
        CHECK_THROWS_WITH_AS(owner.lane(0, lane),
                             fmt::format("[Loader] lane {} of 8", lane).c_str(), UsageError);
      CHECK_THROWS_WITH_AS(owner.lane(owner.steps(), 0), "[Loader] batch 3 of 3", UsageError);
    }
}

TEST_CASE("loader: ranks that deal the data differently have other digests") {
  const auto digest = [](const TensorDataset& dataset, const LoaderOptions& options, Shard shard,
                         int epoch) {
    return Loader(dataset, options, shard, epoch).batch(0).weight.origin.deal_digest;
  };
  const TensorDataset dataset = dataset_of(24);  // divided by every world without a rest
  TensorDataset swapped = dataset_of(24);
  std::swap(swapped["y"].data<std::int64_t>()[3], swapped["y"].data<std::int64_t>()[4]);
  for (const int world : {2, 3, 4}) {
    const LoaderOptions like{.batch = 2, .shuffle = true, .seed = 4, .padded = true};
    const auto other = [&](auto change) {
      LoaderOptions options = like;
      change(options);
      return digest(dataset, options, {1, world}, 6);
    };
    const std::vector<std::uint64_t> digests = {
        digest(dataset, like, {1, world}, 6),
        digest(dataset, like, {1, world}, 7),
        digest(dataset, like, {1, 2 * world}, 6),
        digest(dataset_of(25), like, {1, world}, 6),
        digest(swapped, like, {1, world}, 6),
        other([](LoaderOptions& o) { o.batch = 3; }),
        other([](LoaderOptions& o) { o.total_batch = 6; }),
        other([](LoaderOptions& o) { o.shuffle = false; }),
        other([](LoaderOptions& o) { o.seed = 3; }),
        other([](LoaderOptions& o) { o.padded = false; }),
        other([](LoaderOptions& o) { o.drop_last = true; })};
    CHECK(std::set(digests.begin(), digests.end()).size() == digests.size());
    for (int rank = 0; rank < world; ++rank)
      CHECK(digest(dataset, like, {rank, world}, 6) == digests[0]);
  }
  CHECK(digest(dataset, {.batch = 2}, {}, 0) != 0);  // 0 would say nothing
  const Loader loader(dataset, {.batch = 2}, {2, 5});
  for (const std::int32_t step : {0, 2}) {
    const BatchOrigin origin = loader.batch(step).weight.origin;
    CHECK(origin.step == step);
    CHECK(origin.part == 2);
    CHECK(origin.parts == 5);
  }
  CHECK(Loader(dataset, {}, {7, 70000}).batch(0).weight.origin.parts == 0);  // too many to say
}

TEST_CASE("loader: ranks share each batch of one process, shuffled alike") {
  const TensorDataset dataset = dataset_of(23);
  for (int world : {1, 2, 3, 4, 7}) {
    const Loader whole(dataset, {.batch = 2 * world, .shuffle = true, .seed = 4}, {}, 6);
    CHECK(samples_of(whole.batch(0)) !=
          samples_of(Loader(dataset, {.batch = 2 * world, .shuffle = true, .seed = 4}).batch(0)));
    for (std::int64_t step = 0; step < whole.steps(); ++step) {
      const std::vector<std::int64_t> expected = samples_of(whole.batch(step));
      for (int rank = 0; rank < world; ++rank) {
        const Loader loader(dataset, {.batch = 2, .shuffle = true, .seed = 4}, {rank, world}, 6);
        REQUIRE(loader.steps() == whole.steps());
        const Batch batch = loader.batch(step);
        std::vector<std::int64_t> dealt;
        for (std::size_t i = static_cast<std::size_t>(rank); i < expected.size();
             i += static_cast<std::size_t>(world))
          dealt.push_back(expected[i]);
        CHECK(samples_of(batch) == dealt);
        CHECK(batch.weight.local == static_cast<double>(dealt.size()));
        CHECK(batch.weight.total == static_cast<double>(expected.size()));
      }
    }
  }
}

TEST_CASE("loader: a rank without samples gets batches of no rows") {
  int steps = 0;
  for (const Batch& batch : Loader(dataset_of(2), {.batch = 5}, {2, 3})) {
    CHECK(samples_of(batch).empty());
    CHECK(batch.weight.local == 0);
    CHECK(batch.weight.total == 2);
    ++steps;
  }
  CHECK(steps == 1);
  for (const Batch& batch : Loader(dataset_of(0), {.batch = 5})) FAIL(batch.y.numel());
}

TEST_CASE("loader: padded, with and without the last samples") {
  const TensorDataset dataset = dataset_of(5);
  const auto epoch = [&](bool drop_last, int rank) {
    std::vector<std::int64_t> result;
    const LoaderOptions options{.batch = 2, .padded = true, .drop_last = drop_last};
    for (const Batch& batch : Loader(dataset, options, {rank, 2}))
      for (std::int64_t sample : samples_of(batch)) result.push_back(sample);
    return result;
  };
  CHECK(epoch(false, 0) == std::vector<std::int64_t>{0, 2, 4});
  CHECK(epoch(false, 1) == std::vector<std::int64_t>{1, 3, 0});
  CHECK(epoch(true, 0) == std::vector<std::int64_t>{0, 2});
  CHECK(epoch(true, 1) == std::vector<std::int64_t>{1, 3});
}

TEST_CASE("loader: a batch that is kept is not overwritten by the next") {
  const Loader loader(dataset_of(4), {.batch = 2});
  auto batches = loader.begin();
  const Batch kept = *batches;
  ++batches;
  CHECK(samples_of(kept) == std::vector<std::int64_t>{0, 1});
  CHECK(samples_of(*batches) == std::vector<std::int64_t>{2, 3});
}

TEST_CASE("loader: a steady step takes nothing from the heap") {
  const Loader loader(dataset_of(1000), {.batch = 10, .shuffle = true}, {1, 2});
  auto batches = loader.begin();
  ++batches;  // from here on two batches take turns in the caching allocator
  const long before = heap_allocations();
  [[maybe_unused]] const auto system_before = memory::statistics().system_allocations;
  int steps = 0;
  for (; batches != loader.end(); ++batches) ++steps;
  CHECK(heap_allocations() == before);
  CHECK(before > 0);
#if !defined(__SANITIZE_ADDRESS__)  // there the allocator does not cache
  CHECK(memory::statistics().system_allocations == system_before);
#endif
  CHECK(steps == 49);
}

TEST_CASE("loader: options that make no sense") {
  const TensorDataset dataset = dataset_of(3);
  CHECK_THROWS_AS(Loader(dataset, {.batch = 0}), UsageError);
  CHECK_THROWS_AS(Loader(dataset, {.batch = 1}, {3, 3}), UsageError);
  CHECK_THROWS_AS(Loader(dataset, {.batch = 1, .drop_last = true}), UsageError);
  CHECK_THROWS_AS(Loader(dataset, {.batch = 1}, {}, -1), UsageError);
}

TEST_CASE("loader: an iterator goes on when its loader has ended, or was moved") {
  const auto rest = [](auto batches) {
    std::vector<std::vector<std::int64_t>> all;
    for (; batches != std::default_sentinel; ++batches) all.push_back(samples_of(*batches));
    return all;
  };
  for (const int lanes : {0, 2}) {
    const LoaderOptions options{.batch = 2, .shuffle = true, .seed = 3, .lanes = lanes};
    const auto all = rest(Loader(dataset_of(7), options).begin());
    CHECK(all.size() == 4);
    {
      auto loader = std::make_unique<Loader>(dataset_of(7), options);
      auto batches = loader->begin();
      loader.reset();
      const Loader other(dataset_of(50), {.batch = 9});  // perhaps in its place
      CHECK(rest(batches) == all);
    }
    Loader loader(dataset_of(7), options);
    auto batches = loader.begin();
    const Loader moved = std::move(loader);
    CHECK(rest(batches) == all);
    CHECK(rest(moved.begin()) == all);
    CHECK(rest(loader.begin()) == all);  // so does what was moved from
    loader = Loader(dataset_of(3), {.batch = 1});
    CHECK(rest(loader.begin()).size() == 3);
    CHECK(rest(moved.begin()) == all);
  }
  AnyDataset dataset = dataset_of(5);
  const AnyDataset moved = std::move(dataset);
  CHECK(dataset->size() == 5);
  CHECK(rest(Loader(dataset, {.batch = 5}).begin()).size() == 1);
}

}  // namespace

TEST_CASE("loader: batches that do not exist") {
  const TensorDataset dataset = dataset_of(7);
  const Loader loader(dataset, {.batch = 3});
  for (const std::int64_t step : {std::int64_t{-1}, std::int64_t{3}, std::int64_t{-1000000000}})
    CHECK_THROWS_WITH_AS(loader.batch(step), fmt::format("[Loader] batch {} of 3", step).c_str(),
                         UsageError);
}

TEST_CASE("loader: hardly any two orders of labels have one digest") {
  std::set<std::uint64_t> digests;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    TensorDataset dataset = dataset_of(60);
    const Tensor order = Generator(seed).randperm(60);
    for (std::size_t i = 0; i < 60; ++i)
      dataset["y"].span<std::int64_t>()[i] = order.span<std::int64_t>()[i] % 2;
    digests.insert(Loader(dataset, {}).batch(0).weight.origin.deal_digest >> 1);
  }
  CHECK(digests.size() == 2000);
}

TEST_CASE("lanes: a loop over a Loader sets them, and its end takes them away") {
  const Loader loader(dataset_of(100), {.batch = 44, .lanes = 8});
  for (const Batch& batch : loader) {
    CHECK(current_lanes() == batch.lanes);
    for (const Batch& other : Loader(dataset_of(100), {.batch = 7})) {
      CHECK(current_lanes() == batch.lanes);  // a loader without lanes leaves them alone
      if (other.position > 20) break;
    }
    if (batch.position > 44) break;
  }
  CHECK(current_lanes() == nullptr);
}

}  // namespace lockstep::data
