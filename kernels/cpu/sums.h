#pragma once
/// The two sums on which all others stand. Their order is described in reduce.h.

#include <bit>

#include "lockstep/kernels/cpu/packs.h"

namespace lockstep::kernels {

/// Where pairwise summation cuts n > 1 terms in two.
inline std::int64_t pairwise_cut(std::int64_t n) {
  return static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(n - 1)));
}

/// The elementwise sum of `rows` > 0 vectors that begin `stride` elements apart.
template <class T, int width>
Pack<T, width> sum_vectors(const T* x, std::int64_t rows, std::int64_t stride) {
  constexpr std::int64_t one_after_the_other = 128;
  if (rows > one_after_the_other) {
    const std::int64_t cut = pairwise_cut(rows);
    return sum_vectors<T, width>(x, cut, stride) +
           sum_vectors<T, width>(x + cut * stride, rows - cut, stride);
  }
  Pack<T, width> total = load<T, width>(x);
  for (std::int64_t row = 1; row < rows; ++row) total += load<T, width>(x + row * stride);
  return total;
}

/// The sum of n neighbours.
template <class T>
T sum_run(const T* x, std::int64_t n) {
  constexpr int width = 64;
  const std::int64_t rows = n / width;
  Pack<T, width> total = Pack<T, width>::Zero();
  if (rows > 0) total = sum_vectors<T, width>(x, rows, width);
  if (const std::int64_t rest = n % width) total += load_first<T, width>(x + rows * width, rest);
  return fold<T, width>(total);
}

}  // namespace lockstep::kernels
