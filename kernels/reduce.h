#pragma once
/// Reductions, f32 and f64. sum, sum_rows and sum_to take f16 and bf16 too, add them up in f32, and
/// round once more.
///
/// Accuracy. On the cpu every sum is computed in f64 and rounded once. One of f32 is then within
/// half a unit in the last place of the exact one, unless terms of both signs leave less than one
/// part in 2^29 of them. One of n f64 terms is off by at most (128 + log2 n) 2^-53 times the sum of
/// their magnitudes. A GPU computes sums in their own dtype.
///
/// Order of a sum. Fixed, a function of the shape alone, never of memory alignment or of which
/// processor or GPU it is. On a GPU it is that of cuda/reduction.cuh; on the cpu:
/// - A run of n neighbouring elements is cut into rows of 32 (the last one filled up with zeros).
///   Rows are added elementwise, and the 32 partial sums by halves (16 + 16, 8 + 8, ...).
/// - Many rows are added pairwise: up to 128 one after the other, more as the sum of the two parts
///   left and right of the largest power of two below their number. The error then grows with the
///   logarithm of the number, not with the number (Higham, "The accuracy of floating point
///   summation", SIAM J. Sci. Comput. 14(4), 1993, section 3).
/// - Of several dimensions, the innermost is added up first.
///
/// Sums of nothing are 0. A divisor divides the sum before it is rounded: a mean does not overflow
/// where its sum would (on the cpu).

#include "lockstep/core/tensor.h"

namespace lockstep::kernels {

/// out (+)= (the sum of all elements of x) / divisor. `out` has one element.
void sum(const Tensor& x, const Tensor& out, bool accumulate = false, double divisor = 1);

/// Over the rows: (N, C) -> (C,). The gradient of a bias.
void sum_rows(const Tensor& x, const Tensor& out, bool accumulate = false, double divisor = 1);

/// Over the columns: (N, C) -> (N,).
void sum_cols(const Tensor& x, const Tensor& out, bool accumulate = false, double divisor = 1);

/// The inverse of broadcasting: sums x over the dimensions along which `out` would be repeated to
/// x's shape. Any such pair of shapes.
void sum_to(const Tensor& x, const Tensor& out, bool accumulate = false, double divisor = 1);

/// out = sqrt(the sum of squares), over the same elements as in sum_to. Squares are those of f64,
/// on every device: the norm of f32 overflows only where it is no f32.
void norm(const Tensor& x, const Tensor& out);

/// Index (i64) of the largest element along a dimension, which has elements, the first of equals;
/// NaN counts as largest. `out` has x's shape without that dimension.
void argmax(const Tensor& x, const Tensor& out, int dim = -1);
/// The same of -x: of the smallest.
void argmin(const Tensor& x, const Tensor& out, int dim = -1);

/// True if no element is infinite or NaN. On a GPU this waits for the answer.
bool all_finite(const Tensor& x);

/// flag (one element, i32, on x's device) becomes 1 if an element of x is infinite or NaN, and is
/// left as it is otherwise: several tensors can share it, and nothing waits.
void find_nonfinite(const Tensor& x, const Tensor& flag);

}  // namespace lockstep::kernels
