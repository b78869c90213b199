#pragma once
/// Kernels that repeat and add up elements take 16-bit ones by this way: nothing is computed in
/// them (core/half.h).

#include "lockstep/kernels/elementwise.h"

namespace lockstep::kernels {

/// x itself if it is `dtype`, else converted.
inline Tensor as(DType dtype, const Tensor& x) {
  if (!x.defined() || x.dtype() == dtype) return x;
  const Tensor converted = Tensor::empty(x.shape(), dtype, x.device());
  cast(x, converted);
  return converted;
}

/// A factor of a product that rounds its f32 factors to `round_to`, as matmul.h says, or none.
inline Tensor rounded_factor(DType round_to, const Tensor& x) {
  return round_to == DType::f32 ? x : as(round_to, x);
}

/// f(x, out) on f32 copies of two 16-bit tensors; `out` becomes its copy, rounded once. `keep`:
/// whether f looks at what `out` held.
template <class F>
void in_f32(const Tensor& x, const Tensor& out, bool keep, F f) {
  const Tensor from = Tensor::empty(x.shape(), DType::f32, x.device());
  const Tensor to = Tensor::empty(out.shape(), DType::f32, out.device());
  cast(x, from);
  if (keep) cast(out, to);
  f(from, to);
  cast(to, out);
}

}  // namespace lockstep::kernels
