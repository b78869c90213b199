#pragma once
/// Broadcasting as a plan: a pure function of the shapes, made once and walked by a kernel.
///
/// Neighbouring dimensions along which both operands advance alike are merged, and dimensions of
/// size 1 vanish. So the common cases all become one or two dimensions:
///
///     operands                  sizes     strides of a   strides of b
///     (4, 5, 6), (4, 5, 6)      120       1              1
///     (4, 5, 6), ()             120       1              0
///     (4, 5, 6), (6,)           6, 20     1, 6           1, 0
///     (20, 6), (20, 1)          6, 20     1, 6           0, 1
///
/// (innermost dimension first).

#include <array>
#include <cstdint>

#include "lockstep/core/shape.h"

namespace lockstep::kernels {

struct BroadcastPlan {
  int rank = 1;  ///< number of merged dimensions, at least 1
  // Innermost dimension first. Strides count elements; 0 repeats the same element.
  std::array<std::int64_t, Shape::max_rank> sizes{1};
  std::array<std::int64_t, Shape::max_rank> stride_a{};
  std::array<std::int64_t, Shape::max_rank> stride_b{};
};

/// `a` and `b` must broadcast to `out` (Shape::broadcast has been asked).
BroadcastPlan broadcast_plan(const Shape& a, const Shape& b, const Shape& out);

/// Calls row(out_offset, a_offset, b_offset) for every run along the innermost dimension, in
/// row-major order of the output, which is contiguous.
template <class F>
void for_each_row(const BroadcastPlan& plan, F&& row) {
  for (int d = 0; d < plan.rank; ++d)
    if (plan.sizes[static_cast<std::size_t>(d)] == 0) return;
  std::array<std::int64_t, Shape::max_rank> index{};
  std::int64_t out = 0, a = 0, b = 0;
  while (true) {
    row(out, a, b);
    out += plan.sizes[0];
    std::size_t d = 1;
    for (; d < static_cast<std::size_t>(plan.rank); ++d) {  // count up, carrying
      a += plan.stride_a[d];
      b += plan.stride_b[d];
      if (++index[d] < plan.sizes[d]) break;
      a -= plan.stride_a[d] * plan.sizes[d];
      b -= plan.stride_b[d] * plan.sizes[d];
      index[d] = 0;
    }
    if (d == static_cast<std::size_t>(plan.rank)) return;
  }
}

}  // namespace lockstep::kernels
