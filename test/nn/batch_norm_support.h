#pragma once
/// What the tests of batch normalization share: values in f64 whatever their dtype, and batches
/// that lie on several ranks.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "lockstep/core/tensor.h"
#include "support/device.h"

namespace lockstep::test {

using Values = std::vector<double>;

inline Values values_of(const Tensor& x) {
  if (x.dtype() == DType::f64) return x.to_vector<double>();
  const auto elements = x.to_vector<float>();
  return {elements.begin(), elements.end()};
}

/// On the test's device.
inline Tensor of_values(const Shape& shape, const Values& values, DType dtype) {
  if (dtype == DType::f64) return here(Tensor::of<double>(shape, values));
  return here(Tensor::of<float>(shape, std::vector<float>(values.begin(), values.end())));
}

/// The largest difference over the larger of the largest value and `least`. On any thread.
inline double distance(const Values& actual, const Values& expected, double least = 1e-300) {
  check<Error>(actual.size() == expected.size(), "{} values and {}", actual.size(),
               expected.size());
  double difference = 0, largest = least;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double d = std::abs(actual[i] - expected[i]);
    if (!(d <= difference)) difference = d;  // a NaN, too
    largest = std::max(largest, std::abs(expected[i]));
  }
  return difference / largest;
}

using Batches = std::vector<std::int64_t>;  ///< rows per rank

inline int size_of(const Batches& batches) { return static_cast<int>(batches.size()); }
inline std::int64_t total_of(const Batches& batches) {
  return std::accumulate(batches.begin(), batches.end(), std::int64_t{0});
}
inline std::int64_t rows_of(const Batches& batches, int rank) {
  return batches[static_cast<std::size_t>(rank)];
}
/// A rank's first row among those of all.
inline std::int64_t begin_of(const Batches& batches, int rank) {
  return std::accumulate(batches.begin(), batches.begin() + rank, std::int64_t{0});
}

/// "5 3", for messages.
inline std::string text_of(const Batches& batches) {
  return fmt::format("{}", fmt::join(batches, " "));
}

}  // namespace lockstep::test
