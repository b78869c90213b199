#include "lockstep/dist/ddp/nonfinite.h"

#include <algorithm>
#include <cmath>

#include "lockstep/kernels/reduce.h"

namespace lockstep::dist {

namespace {

// Its first element that is infinite or NaN; -1 if there is none.
std::int64_t first_nonfinite(const Tensor& tensor) {
  if (kernels::all_finite(tensor)) return -1;
  const Tensor host = tensor.to(Device{});
  return visit_floating("reducer", host.dtype(), [&](auto zero) -> std::int64_t {
    const auto values = host.span<decltype(zero)>();
    return std::ranges::find_if_not(values, [](auto value) { return std::isfinite(value); }) -
           values.begin();
  });
}

}  // namespace

void NonFiniteElement::look_in(const GradientBuckets::Bucket& bucket) {
  if (found() || kernels::all_finite(bucket.memory)) return;
  for (std::size_t k = 0; k < bucket.parameters.size() && element < 0; ++k) {
    element = first_nonfinite(bucket.parameters[k].gradient_slot());
    if (element >= 0) parameter = bucket.members[k];
  }
}

void NonFiniteElement::look_in(std::span<const Parameter> parameters) {
  for (std::size_t i = 0; i < parameters.size() && !found(); ++i) {
    element = first_nonfinite(parameters[i].value());
    if (element >= 0) parameter = static_cast<int>(i);
  }
}

}  // namespace lockstep::dist
