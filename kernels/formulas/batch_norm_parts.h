#pragma once
/// What batch_norm.h accumulates over rows, part by part. Templates, so that one text serves a
/// number, a vector of them on the processor, and a thread of a GPU.

#include "lockstep/kernels/formulas/functors.h"

namespace lockstep::kernels {

/// What is known of `count` numbers: their mean, and m2, the sum of (x - mean)^2, without the
/// cancellation in "sum of squares minus square of the sum". V is double, or a vector of doubles:
/// then as many sets of one size.
template <class V = double>
struct Moments {
  double count;
  V mean, m2;

  /// Adds number `count`, which is already counted; `inverse_count` is 1 / count, which sets of one
  /// size can share (Welford, "Note on a method for calculating corrected sums of squares and
  /// products", Technometrics 4(3), 1962).
  LOCKSTEP_HOST_DEVICE void add(const V& x, double inverse_count) {
    const V before = x - mean;
    mean += before * inverse_count;
    m2 += before * (x - mean);
  }

  /// Adds the numbers of another set; an empty one changes nothing (Chan, Golub & LeVeque,
  /// "Algorithms for computing the sample variance", The American Statistician 37(3), 1983,
  /// equation 2.1).
  LOCKSTEP_HOST_DEVICE void merge(const Moments& other) {
    if (other.count == 0) return;
    const double total = count + other.count, share = other.count / total;
    const V difference = other.mean - mean;
    mean += difference * share;
    m2 += other.m2 + difference * difference * (count * share);
    count = total;
  }
};

/// The sums of batch_norm_sums.
template <class V = double>
struct GradientSums {
  V dy, dy_xhat;

  LOCKSTEP_HOST_DEVICE void merge(const GradientSums& other) {
    dy += other.dy;
    dy_xhat += other.dy_xhat;
  }
};

/// 1 / standard deviation, of a set with this m2; of no numbers, the variance is 0.
LOCKSTEP_HOST_DEVICE inline double inverse_std_of(double m2, double count, double eps) {
  using std::sqrt;
  return 1 / sqrt((count > 0 ? m2 / count : 0) + eps);
}

}  // namespace lockstep::kernels
