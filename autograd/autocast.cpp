#include "lockstep/autograd/autocast.h"

#include <utility>

#include "lockstep/kernels/elementwise.h"

namespace lockstep {
namespace {

thread_local Autocast* innermost = nullptr;

}  // namespace

Autocast::Autocast(DType dtype) : dtype_(dtype), outer_(innermost) {
  check<DTypeError>(dtype == DType::f32 || is_16_bit(dtype),
                    "[Autocast] bf16, f16 or f32 is needed, got {}", dtype);
  innermost = this;
}

// Scopes in std::optional may end in any order.
Autocast::~Autocast() {
  Autocast** place = &innermost;
  while (*place && *place != this) place = &(*place)->outer_;
  if (*place) *place = outer_;
}

DType Autocast::current() { return innermost ? innermost->dtype_ : DType::f32; }

Tensor detail::rounded_to(DType dtype, const Tensor& x) {
  if (x.dtype() == dtype) return x;
  const Tensor rounded = Tensor::empty(x.shape(), dtype, x.device());
  kernels::cast(x, rounded);
  return rounded;
}

}  // namespace lockstep
