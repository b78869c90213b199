#pragma once
/// Parts of a data set:
///
///   auto [train, test] = data::split(all, 0.8, /*seed=*/0);             // drawn at random
///   const data::Subset early(all, Tensor::arange(0, all.size() / 2));  // chosen

#include <cstdint>
#include <vector>

#include "lockstep/data/dataset.h"

namespace lockstep::data {

/// Samples of another data set: sample i is its sample indices[i], which may be there several
/// times. Inside a Subset, a Map's random numbers are those of the Map's own sample numbers.
class Subset : public Dataset {
 public:
  /// `indices`: i64 (n,) on the cpu, which is shared, not copied. Throws DataError for another
  /// tensor, and for an index that the data set does not have.
  Subset(AnyDataset dataset, Tensor indices);

  std::int64_t size() const override { return indices_.numel(); }
  Fields sample(std::int64_t index) const override;
  Fields rows(std::span<const std::int64_t> samples, int epoch) const override;
  /// Of the other data set's and of all indices.
  std::uint64_t digest() const override;

  /// As given: i64 (n,).
  const Tensor& indices() const { return indices_; }

 private:
  std::int64_t index(std::int64_t sample) const;

  AnyDataset dataset_;
  Tensor indices_;
};

/// For `auto [train, test] = data::split(...)`.
struct TwoParts {
  Subset train;
  Subset test;
};

/// Draws parts of these sizes, which have no sample in common: consecutive pieces of
/// Generator(seed).randperm(n), as PyTorch's random_split. The same on every rank for the same
/// seed. Throws UsageError unless the sizes are 0 or more and add up to the data set's.
std::vector<Subset> split(const AnyDataset& dataset, const std::vector<std::int64_t>& sizes,
                          std::uint64_t seed);
/// Two parts; `fraction` of the samples, rounded to the nearest number, are for training. Throws
/// UsageError unless 0 <= fraction <= 1.
TwoParts split(const AnyDataset& dataset, double fraction, std::uint64_t seed);

}  // namespace lockstep::data
