#pragma once
/// Random numbers from a counter-based generator (core/philox.h): number i of a stream is a
/// function of (seed, offset, i) alone, so any thread can compute any of them, and every device has
/// the same: uniform f32 and f64 numbers and dropout's masks bit for bit, normal ones within
/// rounding of the logarithm, sine and cosine. In f32 they are PyTorch's CUDA numbers;
/// core/philox.h says how far.
///
/// The number of Philox blocks that a call uses is what PhiloxGenerator::reserve counts.

#include "lockstep/core/philox.h"
#include "lockstep/core/tensor.h"

namespace lockstep::kernels {

/// f32 or f64: uniform in [low, high): fma(u, high - low, low) with u = (r + 1/2) / 2^32 rounded to
/// f32, or (r + 1/2) / 2^53 for f64, r random bits; what rounds up to `high` becomes `low`.
void uniform(const PhiloxState& state, const Tensor& out, double low, double high);

/// f32 or f64: normal, by Box and Muller's method: of two numbers u, v as above, in (0, 1], the two
/// results are mean + stddev * sqrt(-2 log u) * (sin, then cos) of 2 pi v.
void normal(const PhiloxState& state, const Tensor& out, double mean, double stddev);

/// mask_i (u8) = 1 with probability 1 - p, else 0; out = x * mask / (1 - p). 0 <= p < 1. A mask
/// depends on neither the dtype nor the values. `out` may be x.
void dropout(const PhiloxState& state, const Tensor& x, double p, const Tensor& out,
             const Tensor& mask);

/// dx (+)= dy * mask / (1 - p).
void dropout_backward(const Tensor& dy, const Tensor& mask, double p, const Tensor& dx,
                      bool accumulate);

}  // namespace lockstep::kernels
