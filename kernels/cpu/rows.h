#pragma once
/// What softmax and cross-entropy do with one row of n > 0 elements, 16 at a time.

#include <cmath>

#include "lockstep/kernels/cpu/packs.h"

namespace lockstep::kernels {

/// The larger one of two packs' elements, or the smaller one.
template <bool least>
auto extreme_of(const auto& a, const auto& b) {
  if constexpr (least)
    return a.min(b).eval();
  else
    return a.max(b).eval();
}

/// The largest or smallest of what was added, for each of `size` places; anything if it was NaN.
/// odd_j is 0 if all were finite: v - v is 0 of these alone.
template <bool least, class T, int size>
struct Extremes {
  Pack<T, size> best, odd = best - best;

  void add(const Pack<T, size>& next) {
    best = extreme_of<least>(best, next);
    odd += next - next;  // NOLINT: inf - inf is NaN
  }

  Extremes<least, T, size / 2> halved() const {
    constexpr int half = size / 2;
    return {extreme_of<least>(best.template head<half>(), best.template tail<half>()),
            odd.template head<half>() + odd.template tail<half>()};
  }
};

/// The largest element, or the smallest; anything if one of them is NaN. `finite`, where it is not
/// null, tells whether all are.
template <bool least, class T>
T row_extreme(const T* x, std::int64_t n, bool* finite = nullptr) {
  constexpr int wide = 2 * pack_size;  // one pack would wait for the one before
  Extremes<least, T, pack_size> so_far{load_first(x, std::min(n, pack_size), x[0])};
  std::int64_t i = pack_size;
  if (n >= wide) {
    Extremes<least, T, wide> all{load<T, wide>(x)};
    for (i = wide; i + wide <= n; i += wide) all.add(load<T, wide>(x + i));
    so_far = all.halved();
  }
  for (; i + pack_size <= n; i += pack_size) so_far.add(load(x + i));
  if (i < n) so_far.add(load_first(x + i, n - i, x[0]));
  if (finite) *finite = fold<T, pack_size>(so_far.odd) == 0;
  return fold<T, pack_size>(so_far.best,
                            [](const auto& a, const auto& b) { return extreme_of<least>(a, b); });
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
