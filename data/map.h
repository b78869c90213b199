#pragma once
/// Samples that a function makes of other samples, with random numbers if it wants them:
///
///   const data::Map noisy(train, [](data::Fields sample, data::Random& random) {
///     const Tensor x = sample["x"].clone();
///     for (float& pixel : x.span<float>()) pixel += static_cast<float>(0.1 * random.normal());
///     sample.set("x", x);
///     return sample;
///   }, /*seed=*/7);
///   for (const data::Batch& batch : data::Loader(noisy, {.batch = 32}, world, epoch)) ...

#include <cstdint>
#include <functional>

#include "lockstep/data/dataset.h"

namespace lockstep::data {

/// The random numbers of one sample in one epoch, a function of (seed, epoch, sample) alone: the
/// same on any number of ranks, in any order of the samples. Philox4x32-10 (core/philox.h) with the
/// seed as key and the counter {block, epoch, sample's low half, high half}. Also a generator for
/// std::shuffle and for C++'s distributions, whose numbers are those of the standard library.
/// Thread-safety: none; each call of a Map's function has its own.
class Random {
 public:
  using result_type = std::uint32_t;
  /// The least and the largest output, for C++'s distributions.
  static constexpr result_type min() { return 0; }
  static constexpr result_type max() { return 0xffffffff; }

  /// At the beginning of the numbers of a sample in an epoch.
  Random(std::uint64_t seed, int epoch, std::int64_t sample)
      : seed_(seed), epoch_(epoch), sample_(sample) {}

  /// The next 32 bits: the words of block 0, then those of block 1, ...
  result_type operator()();
  /// In [from, to): from + (to - from) * (r64 >> 11) / 2^53, where r64 is made of two outputs, the
  /// first being its high half.
  double uniform(double from = 0, double to = 1);
  /// Mean 0, deviation 1: sqrt(-2 log(1 - u)) cos(2 pi v) of the next two uniforms u and v.
  double normal();
  /// 0 <= result < n: r64 mod n. Throws UsageError unless n >= 1.
  std::int64_t below(std::int64_t n);

 private:
  std::uint64_t next64();

  std::uint64_t seed_;
  int epoch_;
  std::int64_t sample_;
  std::uint32_t drawn_ = 0;  // outputs so far, which wrap around at 2^32
  std::uint32_t block_[4];
};

/// The samples of another data set, each as `function` gives it back: with other values, fields or
/// shapes, but like all the others. The function may change the fields that it gets: no other code
/// sees their elements. Loaders of several threads may call it at a time; what it throws ends the
/// batch.
class Map : public Dataset {
 public:
  using Function = std::function<Fields(Fields sample, Random& random)>;

  /// `seed` is that of the random numbers, the same on all ranks. The epoch is the loader's.
  Map(AnyDataset dataset, Function function, std::uint64_t seed = 0);

  std::int64_t size() const override { return dataset_->size(); }
  /// As in epoch 0.
  Fields sample(std::int64_t index) const override;
  Fields rows(std::span<const std::int64_t> samples, int epoch) const override;
  /// Of the other data set's, the seed, and up to 16 samples as in epoch 0.
  std::uint64_t digest() const override;

 private:
  AnyDataset dataset_;
  Function function_;
  std::uint64_t seed_;
};

}  // namespace lockstep::data
