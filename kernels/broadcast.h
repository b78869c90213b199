#pragma once
/// How two operands are walked together, as a plan: a pure function of shapes and strides, made
/// once and walked by a kernel.
///
/// Neighbouring dimensions along which both operands advance alike are merged, and dimensions of
/// size 1 vanish. So the common cases of broadcasting all become one or two dimensions:
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

#include "lockstep/core/compiler.h"
#include "lockstep/core/shape.h"

namespace lockstep::kernels {

/// Which elements of a tensor a window of some shape shows: element (i, j, ...) of the window is
/// element first + i strides[0] + j strides[1] + ... of the tensor. Strides may be negative, or 0
/// to repeat.
struct Window {
  std::int64_t first = 0;
  std::array<std::int64_t, Shape::max_rank> strides{};
};
/// The window that shows all of a contiguous tensor.
Window whole(const Shape& shape);
/// The window of shape `out` that repeats a tensor of shape x along the dimensions that it lacks or
/// has as 1. It must broadcast to `out` (Shape::broadcast has been asked).
Window repeated(const Shape& x, const Shape& out);

struct StridePlan {
  int rank = 1;                           ///< number of merged dimensions, at least 1
  std::int64_t first_a = 0, first_b = 0;  ///< where the operands begin
  // Innermost dimension first. Strides count elements; 0 repeats the same element.
  std::array<std::int64_t, Shape::max_rank> sizes{1};
  std::array<std::int64_t, Shape::max_rank> stride_a{};
  std::array<std::int64_t, Shape::max_rank> stride_b{};

  /// Calls f(i, a, b) with the places in both operands of element i, counted in row-major order.
  template <class F>
  LOCKSTEP_HOST_DEVICE void at(std::int64_t i, const F& f) const {
    std::int64_t a = first_a, b = first_b, left = i;
    for (int d = 0; d < rank; ++d) {
      const auto k = static_cast<std::size_t>(d);
      const std::int64_t outer = d + 1 < rank ? left / sizes[k] : 0;
      a += (left - outer * sizes[k]) * stride_a[k];
      b += (left - outer * sizes[k]) * stride_b[k];
      left = outer;
    }
    f(i, a, b);
  }
};

/// Of two windows of one shape.
StridePlan stride_plan(const Shape& shape, const Window& a, const Window& b);
/// Of two operands that are repeated to the shape `out`.
inline StridePlan broadcast_plan(const Shape& a, const Shape& b, const Shape& out) {
  return stride_plan(out, repeated(a, out), repeated(b, out));
}

/// Calls block(out_offset, a_offset, b_offset) for every run along the innermost dimension, or for
/// every block of the innermost ones, in row-major order of the output, which is contiguous.
template <int dimensions = 1, class F>
void for_each_row(const StridePlan& plan, F&& block) {
  std::int64_t size = 1;  // of a block
  for (int d = 0; d < plan.rank; ++d) {
    if (plan.sizes[static_cast<std::size_t>(d)] == 0) return;
    if (d < dimensions) size *= plan.sizes[static_cast<std::size_t>(d)];
  }
  std::array<std::int64_t, Shape::max_rank> index{};
  std::int64_t out = 0, a = plan.first_a, b = plan.first_b;
  while (true) {
    block(out, a, b);
    out += size;
    int next = dimensions;
    for (; next < plan.rank; ++next) {  // count up, carrying
      const auto d = static_cast<std::size_t>(next);
      a += plan.stride_a[d];
      b += plan.stride_b[d];
      if (++index[d] < plan.sizes[d]) break;
      a -= plan.stride_a[d] * plan.sizes[d];
      b -= plan.stride_b[d] * plan.sizes[d];
      index[d] = 0;
    }
    if (next >= plan.rank) return;
  }
}

}  // namespace lockstep::kernels
