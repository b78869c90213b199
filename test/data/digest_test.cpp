// The digests by which ranks compare what they train on: each thing that can differ between ranks
// is changed alone.

#include <doctest/doctest.h>

#include <set>

#include "lockstep/data/loader.h"
#include "lockstep/data/map.h"
#include "lockstep/data/subset.h"

namespace lockstep::data {
namespace {

constexpr std::int64_t many = 160;  // of which every tenth is read for a digest

std::uint64_t digest_of(const AnyDataset& dataset, const LoaderOptions& options = {},
                        Shard shard = {}, int epoch = 0) {
  return Loader(dataset, options, shard, epoch).batch(0).weight.origin.deal_digest;
}

/// One field of zeros: no bytes tell two of them apart.
TensorDataset zeros(const Shape& shape, DType dtype = DType::f32, const char* name = "x") {
  return TensorDataset({{name, Tensor::zeros(shape, dtype)}});
}

/// A data set that says of itself what it is told to.
struct Named : Dataset {
  std::int64_t samples;
  std::uint64_t name;
  Named(std::int64_t n, std::uint64_t its_name) : samples(n), name(its_name) {}
  std::int64_t size() const override { return samples; }
  Fields sample(std::int64_t) const override { return {{"x", Tensor::zeros({2})}}; }
  std::uint64_t digest() const override { return name; }
};

/// Calls the function for the options, each time with one of them changed.
template <class F>
void with_each_option(const LoaderOptions& like, F f) {
  // A new option makes this fail to compile: add it below.
  [[maybe_unused]] const auto& [batch, total_batch, shuffle, seed, padded, drop_last, begin, lanes,
                                device] = like;
  const auto changed = [&](auto change) {
    LoaderOptions options = like;
    change(options);
    f(options);
  };
  f(like);
  changed([](LoaderOptions& o) { o.batch *= 2; });
  changed([](LoaderOptions& o) { o.total_batch += 8; });
  changed([](LoaderOptions& o) { o.shuffle = !o.shuffle; });
  if (like.shuffle) changed([](LoaderOptions& o) { o.seed += 100; });
  if (like.lanes == 0 && !like.drop_last) changed([](LoaderOptions& o) { o.padded = !o.padded; });
  if (like.padded) changed([](LoaderOptions& o) { o.drop_last = !o.drop_last; });
  changed([](LoaderOptions& o) { o.begin += 8; });
  if (!like.padded) changed([](LoaderOptions& o) { o.lanes = o.lanes == 0 ? 8 : 2 * o.lanes; });
}

}  // namespace

TEST_CASE("digest: no option of a loader is left out, whatever the others are") {
  const TensorDataset dataset = zeros({many, 2});
  for (const LoaderOptions& like : {LoaderOptions{.batch = 8},
                                    {.batch = 8, .shuffle = true, .seed = 3},
                                    {.total_batch = 8, .padded = true},
                                    {.batch = 8, .padded = true, .drop_last = true},
                                    {.batch = 8, .shuffle = true, .begin = 16, .lanes = 8}}) {
    std::set<std::uint64_t> digests;
    std::size_t variants = 0;
    const auto add = [&](const LoaderOptions& options, Shard shard = {0, 2}, int epoch = 1) {
      CAPTURE(variants);
      ++variants;
      const std::uint64_t digest = digest_of(dataset, options, shard, epoch);
      CHECK(digests.insert(digest).second);
      CHECK(digest == digest_of(dataset, options, {1, shard.size}, epoch));
    };
    with_each_option(like, add);
    add(like, {0, 4});
    if (like.shuffle) add(like, {0, 2}, 2);
  }
}

TEST_CASE("digest: of a data set its size and its own digest count, each alone") {
  CHECK(digest_of(Named(6, 1)) == digest_of(Named(6, 1)));
  CHECK(digest_of(Named(6, 1)) != digest_of(Named(7, 1)));
  CHECK(digest_of(Named(6, 1)) != digest_of(Named(6, 2)));
}

TEST_CASE("digest: number, names, dtypes and shapes of fields count, where all bytes are equal") {
  std::set<std::uint64_t> digests;
  const std::vector<TensorDataset> all{zeros({many, 2, 3}),
                                       zeros({2 * many, 2, 3}),
                                       zeros({many, 3, 2}),
                                       zeros({many, 6}),
                                       zeros({many, 2, 3}, DType::f32, "z"),
                                       zeros({many, 4, 3}, DType::f16),
                                       zeros({many, 4, 3}, DType::bf16),
                                       zeros({many, 3}, DType::f64)};
  for (const TensorDataset& dataset : all) CHECK(digests.insert(dataset.digest()).second);
}

TEST_CASE("digest: samples are read from all parts of the data, labels are read all") {
  const auto digest = [](std::int64_t changed, DType dtype) {
    const Tensor x = Tensor::zeros({many, 1}, dtype);
    const Tensor one = Tensor::full({1, 1}, 1, dtype);
    if (changed >= 0) x.slice(changed, changed + 1).copy_from(one);
    return TensorDataset({{"x", x}}).digest();
  };
  std::set<std::uint64_t> of_values{digest(-1, DType::f32)}, of_labels{digest(-1, DType::i64)};
  for (std::int64_t k = 0; k < 16; ++k) CHECK(of_values.insert(digest(10 * k, DType::f32)).second);
  for (std::int64_t i = 0; i < many; ++i) CHECK(of_labels.insert(digest(i, DType::i64)).second);
}

TEST_CASE("digest: of a Map its data, seed and function count, each where nothing else tells") {
  const auto x_alone = [](const Fields& sample, Random&) { return Fields{{"x", sample["x"]}}; };
  const auto twice = [](const Fields& sample, Random&) {
    const Tensor x = sample["x"].clone();
    for (float& value : x.span<float>()) value = 2 * value + 1;
    return Fields{{"x", x}};
  };
  const TensorDataset dataset = zeros({many, 2});
  const std::uint64_t usual = Map(dataset, x_alone, 7).digest();
  CHECK(usual == Map(dataset, x_alone, 7).digest());
  CHECK(usual != Map(dataset, x_alone, 8).digest());  // who draws, may do so for others
  CHECK(usual != Map(dataset, twice, 7).digest());
  CHECK(usual != dataset.digest());
  const TensorDataset labelled({{"x", dataset["x"]}, {"y", Tensor::arange(many)}});
  CHECK(usual != Map(labelled, x_alone, 7).digest());
}

TEST_CASE("digest: of a Subset its data and every index count") {
  const TensorDataset dataset = zeros({many, 2});
  const auto digest = [](const AnyDataset& of, std::int64_t changed) {
    const Tensor indices = Tensor::arange(many - 1);
    if (changed >= 0) indices.data<std::int64_t>()[changed] = many - 1;
    return Subset(of, indices).digest();
  };
  std::set<std::uint64_t> digests{digest(dataset, -1)};
  for (std::int64_t i = 0; i < many - 1; ++i) CHECK(digests.insert(digest(dataset, i)).second);
  CHECK(digests.insert(digest(zeros({many, 3}), -1)).second);
}

}  // namespace lockstep::data
