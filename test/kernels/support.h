#pragma once
/// What the tests of kernels/ share: data that is different everywhere, naive f64 views of tensors,
/// and PyTorch's numbers.

#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "lockstep/core/tensor.h"
#include "support/device.h"

namespace lockstep::test {

using Values = std::vector<double>;

/// Different at every index, neither sorted nor periodic, in (-2, 2), exact in f32.
inline double value_at(std::int64_t i, int seed = 0) {
  std::uint64_t h = static_cast<std::uint64_t>(i) * 2 + static_cast<std::uint64_t>(seed) * 7919 + 1;
  for (int round = 0; round < 3; ++round) h = (h ^ (h >> 29)) * 0xbf58476d1ce4e5b9u;
  return static_cast<double>(static_cast<std::int64_t>(h >> 42) - (1 << 21)) / (1 << 20);
}

template <class T>
Tensor varied(const Shape& shape, int seed = 0) {
  Tensor result = Tensor::empty(shape, dtype_of<T>());
  std::int64_t i = 0;
  for (T& element : result.span<T>()) element = static_cast<T>(value_at(i++, seed));
  return here(result);
}

/// An output full of NaN: whatever is not overwritten shows.
template <class T>
Tensor nan(const Shape& shape) {
  return here(Tensor::full(shape, std::numeric_limits<double>::quiet_NaN(), dtype_of<T>()));
}

template <class T>
Tensor of_values(const Shape& shape, const Values& values) {
  return here(Tensor::of<T>(shape, std::vector<T>(values.begin(), values.end())));
}

/// The elements of x, beginning `by` elements into their memory: where accesses of several elements
/// may not begin.
template <class T>
Tensor shifted(const Tensor& x, std::int64_t by = 1) {
  const Tensor result = nan<T>({x.numel() + by}).slice(by, x.numel() + by).view(x.shape());
  result.copy_from(x);
  return result;
}

template <class T>
Values to_values(const Tensor& tensor) {
  Values values;
  for (const T& element : tensor.to_vector<T>()) values.push_back(static_cast<double>(element));
  return values;
}

/// |actual - expected| <= tolerance * max(1, |expected|), element by element. A tolerance of 0
/// means equal; NaN and infinity equal themselves.
inline void check_close(const Values& actual, const Values& expected, double tolerance) {
  REQUIRE(actual.size() == expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (std::isnan(expected[i]) && std::isnan(actual[i])) continue;
    if (expected[i] == actual[i]) continue;
    const double error = std::abs(actual[i] - expected[i]);
    const bool close = error <= tolerance * std::max(1.0, std::abs(expected[i]));
    CHECK_MESSAGE(close, "element ", i, ": ", actual[i], " instead of ", expected[i]);
  }
}

template <class T>
void check_close(const Tensor& actual, const Values& expected, double tolerance) {
  check_close(to_values<T>(actual), expected, tolerance);
}

/// f32 and f64 differ in what can be asked of them.
template <class T>
constexpr double tolerance(double f32, double f64) {
  return std::is_same_v<T, float> ? f32 : f64;
}

inline const nlohmann::json& reference() {
  static const nlohmann::json numbers =
      nlohmann::json::parse(std::ifstream(LOCKSTEP_TEST_DATA "/kernels.json"));
  return numbers;
}

}  // namespace lockstep::test
