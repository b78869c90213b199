#pragma once
/// What softmax and cross-entropy do with one row of n > 0 elements, 16 at a time.

#include <cmath>

#include "lockstep/kernels/cpu/lanes.h"

namespace lockstep::kernels {

/// The largest element; anything if one of them is NaN (whose exponential then gives it away).
template <class T>
T row_max(const T* x, std::int64_t n) {
  const auto larger = [](auto a, const auto& b) {
    for (int lane = 0; lane < a.size(); ++lane) a[lane] = b[lane] > a[lane] ? b[lane] : a[lane];
    return a;
  };
  Lanes<T> largest = load_first(x, std::min(n, lanes), x[0]);
  std::int64_t i = lanes;
  for (; i + lanes <= n; i += lanes) largest = larger(largest, load(x + i));
  if (i < n) largest = larger(largest, load_first(x + i, n - i, x[0]));
  return fold<T, lanes>(largest, larger);
}

/// The sum of exp(x_i - shift), in 16 partial sums that are added by halves. Where `out` is not
/// null it receives the terms.
template <class T>
T row_exp_sum(const T* x, std::int64_t n, T shift, T* out) {
  Lanes<T> total = Lanes<T>::Zero();
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const Lanes<T> terms = exponential<T, lanes>(load(x + i) - shift);
    if (out) store<T, lanes>(out + i, terms);
    total += terms;
  }
  if (i < n) {
    Lanes<T> terms = exponential<T, lanes>(load_first(x + i, n - i, shift) - shift);
    std::fill(terms.data() + (n - i), terms.data() + lanes, T(0));
    if (out) store_first<T, lanes>(out + i, n - i, terms);
    total += terms;
  }
  return fold<T, lanes>(total);
}

}  // namespace lockstep::kernels
