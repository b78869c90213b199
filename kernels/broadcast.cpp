#include "lockstep/kernels/broadcast.h"

namespace lockstep::kernels {

Window whole(const Shape& shape) { return repeated(shape, shape); }

Window repeated(const Shape& x, const Shape& out) {
  Window window;
  std::int64_t stride = 1;
  for (int i = 1; i <= x.rank(); ++i) {  // from the last dimension to the first
    window.strides[static_cast<std::size_t>(out.rank() - i)] = x[-i] == 1 ? 0 : stride;
    stride *= x[-i];
  }
  return window;
}

StridePlan stride_plan(const Shape& shape, const Window& a, const Window& b) {
  StridePlan plan{.first_a = a.first, .first_b = b.first};
  std::size_t merged = 0;  // dimensions so far; the current one is merged - 1
  for (auto d = static_cast<std::size_t>(shape.rank()); d-- > 0;) {
    const std::int64_t size = shape[static_cast<int>(d)];
    if (size == 1) continue;
    const std::size_t last = merged - 1;
    if (merged > 0 && a.strides[d] == plan.stride_a[last] * plan.sizes[last] &&
        b.strides[d] == plan.stride_b[last] * plan.sizes[last]) {
      plan.sizes[last] *= size;
    } else {
      plan.sizes[merged] = size;
      plan.stride_a[merged] = a.strides[d];
      plan.stride_b[merged] = b.strides[d];
      ++merged;
    }
  }
  if (merged > 0) plan.rank = static_cast<int>(merged);
  return plan;
}

}  // namespace lockstep::kernels
