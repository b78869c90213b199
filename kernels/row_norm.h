#pragma once
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

#include "lockstep/core/tensor.h"

namespace lockstep::kernels {

struct RowNormConfig {
  double eps = 1e-5;
  bool centered = true;
};

/// `out` = y; mean and inverse_std, f64 (N,), are those of each row: inverse_std = 1 / sqrt(the mean
/// of (x - mean)^2 + eps). weight and bias (C,) are of x's dtype, or undefined (1 and 0).
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
