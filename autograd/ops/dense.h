#pragma once
/// A linear layer of matrices, for linear() and linear_relu(), which check its arguments.

#include "lockstep/core/tensor.h"

namespace lockstep::detail {

/// x (n, in), w (out, in), b (out,) or undefined -> x w^T + b (n, out), or relu of that, as
/// `dtype`. Recorded. x may be rounded as Autocast rounds w.
Tensor dense(const char* operation, const Tensor& x, const Tensor& w, const Tensor& b, bool relu,
             DType dtype);

}  // namespace lockstep::detail
