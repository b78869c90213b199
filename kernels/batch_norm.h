#pragma once
/// Batch normalization over the rows of x (N, C), f32 and f64, in parts that a synchronized one can
/// put its all-reduces between (Ioffe & Szegedy, "Batch Normalization", ICML 2015):
///
///   forward:   batch_statistics(x) -> mean, m2      [ranks merge (count, mean, m2) here]
///              batch_inverse_std(m2, N, eps) -> inverse_std
///              batch_normalize(x, mean, inverse_std, weight, bias) -> y
///   backward:  batch_norm_sums(dy, x, ...) -> sum of dy (= dbias), sum of dy * xhat (= dweight)
///                                                   [ranks add the two sums here]
///              batch_norm_dx(dy, x, ..., sums / N) -> dx
///
/// with xhat = (x - mean) * inverse_std. All per-channel tensors are (C,). Sums over rows are taken
/// in f64, in an order that depends on the shape and the dtype alone.

#include <span>

#include "lockstep/core/tensor.h"

namespace lockstep::kernels {

/// mean_c = the mean over the rows, m2_c = the sum over the rows of (x_ic - mean_c)^2; both f64,
/// whatever x is, so that merging the parts of several ranks loses nothing. On the cpu in two
/// passes, by the sums of reduce.h; on a GPU by Welford's update within a part. Between parts by
/// Chan's formula (Chan, Golub & LeVeque, "Algorithms for computing the sample variance", The
/// American Statistician 37(3), 1983, equation 2.1). No rows: 0 and 0.
void batch_statistics(const Tensor& x, const Tensor& mean, const Tensor& m2);

/// Merges part b into part a: (count, mean, m2) per channel, by Chan's formula; a count of 0 leaves
/// the other part as it is. Host tensors, f64 (C,).
void merge_statistics(double count_a, const Tensor& mean_a, const Tensor& m2_a, double count_b,
                      const Tensor& mean_b, const Tensor& m2_b);

/// What is known of some rows.
struct RowStatistics {
  double count;
  Tensor mean, m2;  ///< host tensors, f64 (C,)
};
/// parts[0] := all of them, merged in the tree of tree_reduce.h; the others are lost.
void merge_statistics(std::span<RowStatistics> parts);

/// out = 1 / sqrt(m2 / count + eps), f64 (C,), where `count` is the number of rows in m2. The
/// variance of no rows is 0. `out` may be m2.
void batch_inverse_std(const Tensor& m2, double count, double eps, const Tensor& out);

/// out = (x - mean) * inverse_std * weight + bias. mean and inverse_std are f64; weight and bias of
/// x's dtype, or undefined (1 and 0).
void batch_normalize(const Tensor& x, const Tensor& mean, const Tensor& inverse_std,
                     const Tensor& weight, const Tensor& bias, const Tensor& out);

/// sum_dy_c = sum over i of dy_ic, sum_dy_xhat_c = sum over i of dy_ic * xhat_ic; both f64.
void batch_norm_sums(const Tensor& dy, const Tensor& x, const Tensor& mean,
                     const Tensor& inverse_std, const Tensor& sum_dy, const Tensor& sum_dy_xhat);

/// dx (+)= weight * inverse_std * (dy - mean_dy - xhat * mean_dy_xhat), where the means (f64) are
/// the sums above divided by the number of rows that were normalized together. Where the statistics
/// are constants (evaluation), the means are zeros.
void batch_norm_dx(const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& inverse_std,
                   const Tensor& weight, const Tensor& mean_dy, const Tensor& mean_dy_xhat,
                   const Tensor& dx, bool accumulate);

// --- Rows ----------------------------------------------------------------------------------------

/// Normalization of the rows of x (N, C), f32 and f64:
///
///   y = xhat * weight + bias,  xhat = (x - mean) * inverse_std
///
/// centered: LayerNorm (Ba, Kiros & Hinton, "Layer normalization", 2016, equation 3); otherwise
/// RMSNorm, whose mean counts as 0 (Zhang & Sennrich, "Root mean square layer normalization",
/// NeurIPS 2019, equation 4).
///
/// Means and sums are computed in f64 (reduce.h), and x - mean without a rounding of the mean, so
/// that rows may lie far from 0. A row has the same bits beside any others.
struct RowNormConfig {
  double eps = 1e-5;
  bool centered = true;
};

/// `out` = y; mean and inverse_std, f64 (N,), are those of each row: inverse_std = 1 / sqrt(m +
/// eps), m the mean of (x - mean)^2. weight and bias (C,) are of x's dtype, or undefined (1 and 0).
void row_normalize(const Tensor& x, const Tensor& weight, const Tensor& bias,
                   const RowNormConfig& config, const Tensor& out, const Tensor& mean,
                   const Tensor& inverse_std);

/// dweight (C,) (+)= the sum over the rows of dy * xhat. (That of dy is dbias.)
void row_norm_dweight(const Tensor& dy, const Tensor& x, const Tensor& mean,
                      const Tensor& inverse_std, const Tensor& dweight, bool accumulate);

/// dx (+)= inverse_std * (g - mean of g - xhat * mean of g * xhat), with g = dy * weight and means
/// over the row; that of g is left out if rows are not centered.
void row_norm_dx(const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& inverse_std,
                 const Tensor& weight, const RowNormConfig& config, const Tensor& dx,
                 bool accumulate);

}  // namespace lockstep::kernels
