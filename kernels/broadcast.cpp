#include "lockstep/kernels/broadcast.h"

namespace lockstep::kernels {

BroadcastPlan broadcast_plan(const Shape& a, const Shape& b, const Shape& out) {
  BroadcastPlan plan;
  std::size_t merged = 0;  // dimensions so far; the current one is merged - 1
  std::int64_t next_a = 1, next_b = 1;
  for (int i = 1; i <= out.rank(); ++i) {  // from the last dimension to the first
    const std::int64_t size_a = i <= a.rank() ? a[-i] : 1;
    const std::int64_t size_b = i <= b.rank() ? b[-i] : 1;
    const std::int64_t size = out[-i];
    const std::int64_t stride_a = size_a == 1 ? 0 : next_a;
    const std::int64_t stride_b = size_b == 1 ? 0 : next_b;
    next_a *= size_a;
    next_b *= size_b;
    if (size == 1) continue;
    const std::size_t last = merged - 1;
    if (merged > 0 && stride_a == plan.stride_a[last] * plan.sizes[last] &&
        stride_b == plan.stride_b[last] * plan.sizes[last]) {
      plan.sizes[last] *= size;
    } else {
      plan.sizes[merged] = size;
      plan.stride_a[merged] = stride_a;
      plan.stride_b[merged] = stride_b;
      ++merged;
    }
  }
  if (merged > 0) plan.rank = static_cast<int>(merged);
  return plan;
}

}  // namespace lockstep::kernels
