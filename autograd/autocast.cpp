#include "lockstep/autograd/autocast.h"

#include "lockstep/core/gpu/graph.h"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/matmul.h"

namespace lockstep {

Autocast::Autocast(DType dtype) : ThreadScope("Autocast"), dtype_(dtype) {
  check<DTypeError>(dtype == DType::f32 || is_16_bit(dtype),
                    "[Autocast] bf16, f16 or f32 is needed, got {}", dtype);
  [[maybe_unused]] static const bool noted = [] {
    StepGraph::depends_on_surroundings([]() -> std::uint64_t {
      return current() == DType::f32 ? 0 : 1 + static_cast<std::uint64_t>(current());
    });
    return true;
  }();
}

DType Autocast::current() { return innermost() ? innermost()->dtype_ : DType::f32; }

Tensor detail::rounded_to(DType dtype, const Tensor& x) {
  if (x.dtype() == dtype) return x;
  const Tensor rounded = Tensor::empty(x.shape(), dtype, x.device());
  kernels::cast(x, rounded);
  return rounded;
}

detail::FactorRounding detail::layer_rounding(const Tensor& x, const Tensor& w, bool whole) {
  const DType dtype = w.dtype() == DType::f32 ? Autocast::current() : DType::f32;
  if (dtype == DType::f32) return {};
  return {dtype, whole && kernels::rounds_factors(x.device(), x.size(0), w.size(0), w.size(1))};
}

}  // namespace lockstep
