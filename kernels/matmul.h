#pragma once
/// Matrix products, row-major, f32 and f64, on the calling thread alone. f32 goes to oneDNN where
/// it was found at configuration, else to Eigen; f64 to Eigen. Empty dimensions are allowed: a
/// product over K = 0 is all zeros.

#include "lockstep/core/tensor.h"

namespace lockstep::kernels {

struct MatmulFlags {
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
};

/// out (+)= op(a) op(b), with op(a) (M, K), op(b) (K, N), out (M, N); op transposes on demand:
/// with transpose_a, `a` itself is (K, M). `out` must not overlap a or b.
void matmul(const Tensor& a, const Tensor& b, const Tensor& out, MatmulFlags flags = {});

/// out = x w^T + bias: x (N, in), w (out, in) as PyTorch keeps it, bias (out,) or undefined,
/// out (N, out).
///
/// Backward is three calls: dx = matmul(dy, w); dw = matmul(dy, x, transpose_a);
/// dbias = sum_rows(dy).
void linear(const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& out);

}  // namespace lockstep::kernels
