#include "lockstep/data/map.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "data/stored.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/subset.h"

namespace lockstep::data {
namespace {

using Samples = std::map<std::int64_t, std::vector<double>>;

TensorDataset numbered(std::int64_t n) {
  const Tensor x = Tensor::empty({n, 3});
  std::iota(x.span<float>().begin(), x.span<float>().end(), 0.0f);
  return TensorDataset({{"x", x}, {"y", Tensor::arange(n)}});
}

/// Noise on x, in place; a field more, of another shape and dtype; "y" as it was.
Fields noisy(Fields sample, Random& random) {
  for (float& value : sample["x"].span<float>())
    value += static_cast<float>(random.uniform(0.1, 0.4));
  Tensor order = Tensor::arange(5);
  std::ranges::shuffle(order.span<std::int64_t>(), random);
  sample.set("order", order);
  sample.set("coin", Tensor::scalar(static_cast<double>(random.below(2)), DType::u8));
  return sample;
}

/// What every sample becomes in an epoch, over all ranks, by its label.
Samples epoch_of(const AnyDataset& dataset, int world, int epoch, std::uint64_t shuffling = 0) {
  Samples samples;
  for (int rank = 0; rank < world; ++rank) {
    const LoaderOptions options{.batch = 2, .shuffle = shuffling > 0, .seed = shuffling};
    for (const Batch& batch : Loader(dataset, options, {rank, world}, epoch))
      for (std::int64_t row = 0; row < batch.y.numel(); ++row) {
        std::vector<double> values;
        for (const auto& [name, value] : detail::row_of(batch.fields, row))
          std::ranges::copy(elements(value), std::back_inserter(values));
        const auto [place, added] = samples.insert({batch.y.data<std::int64_t>()[row], values});
        CHECK((added || place->second == values));  // a sample that pads the epoch
      }
  }
  return samples;
}

TEST_CASE("map: random numbers depend on seed, epoch and sample alone") {
  const TensorDataset dataset = numbered(23);
  const Map map(dataset, noisy, 7);
  const Samples expected = epoch_of(map, 1, 4);
  REQUIRE(expected.size() == 23);
  for (const int world : {1, 2, 3, 4, 7})
    for (const std::uint64_t shuffling : {0, 1, 2})
      CHECK(epoch_of(map, world, 4, shuffling) == expected);
  CHECK(epoch_of(map, 2, 5) != expected);
  CHECK(epoch_of(Map(dataset, noisy, 8), 2, 4) != expected);
  CHECK(elements(dataset["x"])[5] == 5);  // the samples in memory stay as they are
  // Within an epoch, samples get different numbers.
  CHECK(expected.at(0)[0] - 0 != doctest::Approx(expected.at(1)[0] - 3));
  for (const auto& [label, values] : expected)
    for (std::size_t j = 0; j < 3; ++j) {
      const double noise = values[j] - static_cast<double>(3 * label) - static_cast<double>(j);
      CHECK(0.09 < noise);
      CHECK(noise < 0.41);
    }
}

TEST_CASE("map: of a subset, of a map, of no rows, and of no samples") {
  const Map map(numbered(10), noisy, 7);
  const Samples whole = epoch_of(map, 1, 3);
  // Part of a Map: the numbers are those of the Map's samples.
  for (const auto& [label, values] : epoch_of(split(map, 0.5, 0).train, 2, 3))
    CHECK(values == whole.at(label));
  const auto twice = [](Fields sample, Random&) {
    const Tensor x = sample["x"].clone();
    for (float& value : x.span<float>()) value *= 2;
    sample.set("x", x);
    return sample;
  };
  const Map both(map, twice);
  for (const auto& [label, values] : epoch_of(both, 3, 3)) {
    CHECK(values[0] == 2 * whole.at(label)[0]);
    CHECK(values.back() == whole.at(label).back());
  }
  const Batch none = Loader(map, {.batch = 10}, {11, 12}).batch(0);
  CHECK(none["order"].shape() == Shape{0, 5});
  CHECK(none["order"].dtype() == DType::i64);
  CHECK(none["coin"].shape() == Shape{0});
  for (const Batch& batch : Loader(Map(numbered(0), noisy), {})) FAIL(batch.y.numel());
  CHECK(elements(map.sample(4)["x"]) == elements(map.all()["x"].slice(4, 5)));
}

TEST_CASE("map: what the function does wrong is said; ranks with other functions are told apart") {
  const TensorDataset dataset = numbered(6);
  const auto plan = [](const AnyDataset& any) {
    return Loader(any, {}).batch(0).weight.origin.deal_digest;
  };
  const Map usual(dataset, noisy, 7);
  CHECK(plan(usual) == plan(Map(dataset, noisy, 7)));
  CHECK(plan(usual) != plan(dataset));
  CHECK(plan(usual) != plan(Map(dataset, noisy, 8)));
  CHECK(plan(usual) != plan(Map(
                           dataset, [](Fields sample, Random&) { return sample; }, 7)));
  TensorDataset other = numbered(6);
  other["y"].data<std::int64_t>()[3] = 9;
  const auto without_y = [](const Fields& sample, Random&) { return Fields{{"x", sample["x"]}}; };
  CHECK(plan(Map(other, without_y)) != plan(Map(dataset, without_y)));

  const auto uneven = [](Fields sample, Random&) {
    sample.set("x", Tensor::zeros({sample["y"].item() == 2 ? 4 : 3}));
    return sample;
  };
  CHECK_THROWS_WITH_AS(Loader(Map(dataset, uneven), {}),
                       "[Dataset] field 'x' of sample 2 is f32 (4,), but of sample 0 f32 (3,)",
                       DataError);
  CHECK_THROWS_AS(Map(dataset, nullptr), UsageError);
}

TEST_CASE("Random: Philox4x32-10 of (seed, epoch, sample)") {
  for (const auto& expected : stored().at("random")) {
    const auto start = [&] {
      return Random(expected.at("seed").get<std::uint64_t>(), expected.at("epoch"),
                    expected.at("sample"));
    };
    Random words = start(), uniform = start(), below = start(), normal = start();
    for (const std::uint32_t word : expected.at("words")) CHECK(words() == word);
    for (const double value : expected.at("uniform")) CHECK(uniform.uniform() == value);
    for (const std::int64_t value : expected.at("below_10")) CHECK(below.below(10) == value);
    for (const double value : expected.at("normal"))
      CHECK(normal.normal() == doctest::Approx(value).epsilon(1e-14));
    Random scaled = start();
    const double first = expected.at("uniform")[0];
    CHECK(scaled.uniform(-2, 6) == -2 + 8 * first);
    CHECK_THROWS_AS(scaled.below(0), UsageError);
  }
}

}  // namespace
}  // namespace lockstep::data
