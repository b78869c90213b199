#pragma once
/// Clipping of gradients: one call works on a whole table of tensors (f32 or f64, any shape, all on
/// one device).

#include <span>

#include "lockstep/core/tensor.h"

namespace lockstep::kernels {

/// out = sqrt(the sum of the squares of all elements of all tensors), the norm of the tensors laid
/// end to end. Squares and sums are f64. `out`: f64, one element. Of nothing it is 0.
///
/// The order of the sum is a function of the tensors' order, shapes and dtypes alone. So the norm
/// of gradients has the same bits however they lie in memory. (Summed bucket by bucket it would
/// depend on how large the buckets are.)
void global_norm(std::span<const Tensor> tensors, const Tensor& out);

/// Each tensor *= min(1, max_norm / (norm + 1e-6)), the formula of torch.nn.utils.clip_grad_norm_.
/// `norm`: f64, one element, on the tensors' device; it is read there, and nothing waits. The
/// factor is computed in f64 and rounded to the tensor's dtype. A factor of 1 touches no element;
/// the factor of a NaN norm is NaN, and every element becomes NaN; an infinite norm makes 0 of
/// finite elements and NaN of infinite ones. (Pascanu, Mikolov, Bengio, "On the difficulty of
/// training recurrent neural networks", ICML 2013, algorithm 1.)
void clip_by_norm(std::span<const Tensor> tensors, const Tensor& norm, double max_norm);

/// Each element x becomes min(max(x, -limit), limit); NaN stays NaN. `limit` is rounded to the
/// tensor's dtype.
void clip_by_value(std::span<const Tensor> tensors, double limit);

}  // namespace lockstep::kernels
