#include "lockstep/autograd/autocast.h"

#include <utility>

#include "lockstep/kernels/elementwise.h"

namespace lockstep {
namespace {

thread_local DType dtype_of_factors = DType::f32;

}  // namespace

Autocast::Autocast(DType dtype) : outer_(dtype_of_factors) {
  check<DTypeError>(dtype == DType::f32 || is_16_bit(dtype),
                    "[Autocast] bf16, f16 or f32 is needed, got {}", dtype);
  dtype_of_factors = dtype;
}

Autocast::~Autocast() { dtype_of_factors = outer_; }

DType Autocast::current() { return dtype_of_factors; }

Tensor detail::rounded_to(DType dtype, const Tensor& x) {
  if (x.dtype() == dtype) return x;
  const Tensor rounded = Tensor::empty(x.shape(), dtype, x.device());
  kernels::cast(x, rounded);
  return rounded;
}

}  // namespace lockstep
