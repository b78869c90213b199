#include "lockstep/dist/ddp/nonfinite.h"

#include <algorithm>
#include <cmath>

#include "lockstep/kernels/reduce.h"

namespace lockstep::dist {

void NonFiniteElement::look_in(const GradientBuckets::Bucket& bucket) {
  if (found() || kernels::all_finite(bucket.memory)) return;
  for (std::size_t k = 0; k < bucket.parameters.size() && !found(); ++k) {
    const Tensor gradient = bucket.parameters[k].gradient_slot().to(Device{});
    visit_floating("reducer", gradient.dtype(), [&](auto zero) {
      const auto values = gradient.span<decltype(zero)>();
      const auto bad =
          std::ranges::find_if_not(values, [](auto value) { return std::isfinite(value); });
      if (bad == values.end()) return;
      parameter = bucket.members[k];
      element = bad - values.begin();
    });
  }
}

}  // namespace lockstep::dist
