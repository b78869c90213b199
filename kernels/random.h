#pragma once
/// Dropout by numbers of a counter-based generator (core/philox.h): number i of a stream is a
/// function of (seed, offset, i) alone, so any thread can compute any of them, and every device has
/// the same masks bit for bit. They are PyTorch's on CUDA; core/philox.h says how far.
///
/// The number of Philox blocks that a call uses is what PhiloxGenerator::reserve counts.

#include "lockstep/core/philox.h"
#include "lockstep/core/tensor.h"

namespace lockstep::kernels {

/// mask_i (u8) = 1 with probability 1 - p, else 0; out = x * mask / (1 - p). 0 <= p < 1. A mask
/// depends on neither the dtype nor the values. `out` may be x.
void dropout(const PhiloxState& state, const Tensor& x, double p, const Tensor& out,
             const Tensor& mask);

/// dx (+)= dy * mask / (1 - p).
void dropout_backward(const Tensor& dy, const Tensor& mask, double p, const Tensor& dx,
                      bool accumulate);

}  // namespace lockstep::kernels
