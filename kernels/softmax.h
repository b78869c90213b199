#pragma once
/// Softmax over the last dimension of (N, C), f32 and f64. The largest element of a row is
/// subtracted first, so that large inputs do not overflow; a row that holds NaN or +infinity
/// becomes NaN.

#include "lockstep/core/tensor.h"

namespace lockstep::kernels {

/// y_ic = exp(x_ic) / sum_k exp(x_ik). `out` may be x.
void softmax(const Tensor& x, const Tensor& out);

/// y_ic = x_ic - log sum_k exp(x_ik). `out` may be x.
void log_softmax(const Tensor& x, const Tensor& out);

/// dx_ic (+)= dy_ic - exp(y_ic) * sum_k dy_ik, with y the output of log_softmax.
void log_softmax_backward(const Tensor& dy, const Tensor& y, const Tensor& dx, bool accumulate);

}  // namespace lockstep::kernels
