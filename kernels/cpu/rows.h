#pragma once
/// What softmax and cross-entropy do with one row of n > 0 elements, 16 at a time.

#include <cmath>

#include "lockstep/kernels/cpu/packs.h"

namespace lockstep::kernels {

/// The largest element; anything if one of them is NaN (whose exponential then gives it away).
template <class T>
T row_max(const T* x, std::int64_t n) {
  const auto larger = [](auto a, const auto& b) {
    for (int lane = 0; lane < a.size(); ++lane) a[lane] = b[lane] > a[lane] ? b[lane] : a[lane];
    return a;
  };
  Pack<T> largest = load_first(x, std::min(n, pack_size), x[0]);
  std::int64_t i = pack_size;
  for (; i + pack_size <= n; i += pack_size) largest = larger(largest, load(x + i));
  if (i < n) largest = larger(largest, load_first(x + i, n - i, x[0]));
  return fold<T, pack_size>(largest, larger);
}

/// The sum of exp(x_i - shift), in 16 partial sums that are added by halves. Where `out` is not
/// null it receives the terms.
template <class T>
T row_exp_sum(const T* x, std::int64_t n, T shift, T* out) {
  Pack<T> total = Pack<T>::Zero();
  std::int64_t i = 0;
  for (; i + pack_size <= n; i += pack_size) {
    const Pack<T> terms = exponential<T, pack_size>(load(x + i) - shift);
    if (out) store<T, pack_size>(out + i, terms);
    total += terms;
  }
  if (i < n) {
    Pack<T> terms = exponential<T, pack_size>(load_first(x + i, n - i, shift) - shift);
    std::fill(terms.data() + (n - i), terms.data() + pack_size, T(0));
    if (out) store_first<T, pack_size>(out + i, n - i, terms);
    total += terms;
  }
  return fold<T, pack_size>(total);
}

}  // namespace lockstep::kernels
