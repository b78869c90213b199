#pragma once
/// Reductions, f32 and f64, computed in their own dtype. sum, sum_rows and sum_to take f16 and bf16
/// too, add them up in f32, and round once.
///
/// Order of a sum. Fixed, a function of the shape alone, never of memory alignment or of which
/// processor or GPU it is. On a GPU it is that of cuda/reduction.cuh; on the cpu:
/// - A run of n neighbouring elements is cut into rows of 64 (the last one filled up with zeros).
///   Rows are added elementwise, and the 64 partial sums by halves (32 + 32, 16 + 16, ...).
/// - Many rows are added pairwise: up to 128 one after the other, more as the sum of the two parts
///   left and right of the largest power of two below their number. The error then grows with the
///   logarithm of the number, not with the number (Higham, "The accuracy of floating point
///   summation", SIAM J. Sci. Comput. 14(4), 1993, section 3).
///
/// Sums of nothing are 0.

#include "lockstep/core/tensor.h"

namespace lockstep::kernels {

/// out (+)= scale * (the sum of all elements of x). `out` has one element.
void sum(const Tensor& x, const Tensor& out, bool accumulate = false, double scale = 1);

/// Over the rows: (N, C) -> (C,). The gradient of a bias.
void sum_rows(const Tensor& x, const Tensor& out, bool accumulate = false);

/// Over the columns: (N, C) -> (N,).
void sum_cols(const Tensor& x, const Tensor& out, bool accumulate = false);

/// The inverse of broadcasting: sums x over the dimensions along which `out` would be repeated to
/// x's shape. Any such pair of shapes; where neither of the above applies, the innermost sums are
/// added one after the other in row-major order.
void sum_to(const Tensor& x, const Tensor& out, bool accumulate = false);

/// Index (i64) of the largest element along the last dimension, the first of equals; NaN counts as
/// largest. x (..., C) with C > 0 -> out (...).
void argmax(const Tensor& x, const Tensor& out);

/// True if no element is infinite or NaN. On a GPU this waits for the answer.
bool all_finite(const Tensor& x);

/// flag (one element, i32, on x's device) becomes 1 if an element of x is infinite or NaN, and is
/// left as it is otherwise: several tensors can share it, and nothing waits.
void find_nonfinite(const Tensor& x, const Tensor& flag);

}  // namespace lockstep::kernels
