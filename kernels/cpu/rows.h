#pragma once
/// What softmax and cross-entropy do with one row of n > 0 elements, 16 at a time.

#include <cmath>

#include "lockstep/kernels/cpu/packs.h"

namespace lockstep::kernels {

/// The largest element, or the smallest; anything if one of them is NaN.
template <bool least, class T>
T row_extreme(const T* x, std::int64_t n) {
  const auto better = [](const auto& a, const auto& b) {
    if constexpr (least)
      return a.min(b).eval();
    else
      return a.max(b).eval();
  };
  Pack<T> best = load_first(x, std::min(n, pack_size), x[0]);
  std::int64_t i = pack_size;
  for (; i + pack_size <= n; i += pack_size) best = better(best, load(x + i));
  if (i < n) best = better(best, load_first(x + i, n - i, x[0]));
  return fold<T, pack_size>(best, better);
}

/// The largest element; anything if one of them is NaN (whose exponential then gives it away).
template <class T>
T row_max(const T* x, std::int64_t n) {
  return row_extreme<false>(x, n);
}

/// The sum of exp(x_i - shift), in f64, in 16 partial sums that are added by halves. Where `out` is
/// not null it receives the terms.
template <class T>
double row_exp_sum(const T* x, std::int64_t n, T shift, T* out) {
  Pack<double> total = Pack<double>::Zero();
  std::int64_t i = 0;
  for (; i + pack_size <= n; i += pack_size) {
    const Pack<T> terms = exponential<T, pack_size>(load(x + i) - shift);
    if (out) store<T, pack_size>(out + i, terms);
    total += terms.template cast<double>();
  }
  if (i < n) {
    Pack<T> terms = exponential<T, pack_size>(load_first(x + i, n - i, shift) - shift);
    std::fill(terms.data() + (n - i), terms.data() + pack_size, T(0));
    if (out) store_first<T, pack_size>(out + i, n - i, terms);
    total += terms.template cast<double>();
  }
  return fold<double, pack_size>(total);
}

}  // namespace lockstep::kernels
