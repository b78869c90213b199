#include "lockstep/kernels/reduce.h"

#include <cmath>

#include "lockstep/kernels/broadcast.h"
#include "lockstep/kernels/checks.h"
#include "lockstep/kernels/cpu/sums.h"
#include "lockstep/kernels/elementwise.h"

namespace lockstep::kernels {
namespace {

template <class T>
void put(T& out, T value, bool accumulate) {
  out = accumulate ? out + value : value;
}

/// Columns [0, columns) of `rows` rows. As many columns as fit into registers go together, then
/// fewer.
template <int width, class T>
void sum_columns(const T* x, std::int64_t rows, std::int64_t columns, std::int64_t stride, T* out,
                 bool accumulate) {
  std::int64_t column = 0;
  for (; column + width <= columns; column += width) {
    Lanes<T, width> total = sum_vectors<T, width>(x + column, rows, stride);
    if (accumulate) total = load<T, width>(out + column) + total;
    store<T, width>(out + column, total);
  }
  if (column == columns) return;
  if constexpr (width > 1)
    sum_columns<width / 4>(x + column, rows, columns - column, stride, out + column, accumulate);
}

/// sum_to where nothing simpler applies. `out` already holds what is added to.
template <class T>
void sum_general(const BroadcastPlan& plan, const T* x, T* out) {
  for_each_row(plan, [&](std::int64_t from, std::int64_t to, std::int64_t) {
    const std::int64_t n = plan.sizes[0];
    if (plan.stride_a[0] == 0) {
      out[to] += sum_run(x + from, n);
    } else {
      for (std::int64_t i = 0; i < n; ++i) out[to + i] += x[from + i];
    }
  });
}

/// In blocks: the compiler vectorizes within one, and the search ends soon after a bad element.
template <class T>
bool all_finite_run(const T* x, std::int64_t n) {
  constexpr std::int64_t block = 4096;
  for (std::int64_t begin = 0; begin < n; begin += block) {
    const std::int64_t end = std::min(n, begin + block);
    int bad = 0;
    for (std::int64_t i = begin; i < end; ++i) bad |= !(x[i] - x[i] == 0);  // inf - inf is NaN
    if (bad) return false;
  }
  return true;
}

void check_sum(std::string_view operation, const Tensor& x, const Tensor& out) {
  check_host(operation, "x", x, x.dtype());
  check_host(operation, "out", out, x.dtype());
}

}  // namespace

void sum(const Tensor& x, const Tensor& out, bool accumulate, double scale) {
  check_sum("sum", x, out);
  check<ShapeError>(out.numel() == 1, "[sum] out: expected one element, got shape {}", out.shape());
  visit_floating("sum", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    put(*out.data<T>(), static_cast<T>(scale) * sum_run(x.data<T>(), x.numel()), accumulate);
  });
}

void sum_rows(const Tensor& x, const Tensor& out, bool accumulate) {
  check_sum("sum_rows", x, out);
  check_rank("sum_rows", "x", x, 2);
  check_shape("sum_rows", "out", out, {x.size(1)});
  if (x.size(0) == 0) {
    if (!accumulate) out.fill_zero();
    return;
  }
  visit_floating("sum_rows", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t columns = x.size(1);
    sum_columns<64>(x.data<T>(), x.size(0), columns, columns, out.data<T>(), accumulate);
  });
}

void sum_cols(const Tensor& x, const Tensor& out, bool accumulate) {
  check_sum("sum_cols", x, out);
  check_rank("sum_cols", "x", x, 2);
  check_shape("sum_cols", "out", out, {x.size(0)});
  visit_floating("sum_cols", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t columns = x.size(1);
    T* to = out.data<T>();
    for (std::int64_t i = 0; i < x.size(0); ++i)
      put(to[i], sum_run(x.data<T>() + i * columns, columns), accumulate);
  });
}

void sum_to(const Tensor& x, const Tensor& out, bool accumulate) {
  check_sum("sum_to", x, out);
  check<ShapeError>(Shape::broadcast("sum_to", out.shape(), x.shape()) == x.shape(),
                    "[sum_to] out of shape {} does not broadcast to x of shape {}", out.shape(),
                    x.shape());
  const BroadcastPlan plan = broadcast_plan(out.shape(), x.shape(), x.shape());
  const std::int64_t inner = plan.stride_a[0], outer = plan.rank == 2 ? plan.stride_a[1] : -1;
  const Tensor from = x.detach(), to = out.detach();  // handles that may be viewed in another shape
  if (x.numel() == out.numel()) return scale(1, from.view(out.shape()), out, accumulate);
  if (plan.rank == 1) return sum(x, out, accumulate);
  const Shape matrix{plan.sizes[1], plan.sizes[0]};
  if (inner == 1 && outer == 0)
    return sum_rows(from.view(matrix), to.view({plan.sizes[0]}), accumulate);
  if (inner == 0 && outer == 1)
    return sum_cols(from.view(matrix), to.view({plan.sizes[1]}), accumulate);
  if (!accumulate) out.fill_zero();
  visit_floating("sum_to", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    sum_general(plan, x.data<T>(), out.data<T>());
  });
}

void argmax(const Tensor& x, const Tensor& out) {
  check_host("argmax", "x", x, x.dtype());
  check_host("argmax", "out", out, DType::i64);
  check<ShapeError>(x.rank() > 0 && x.size(-1) > 0,
                    "[argmax] x has no last dimension to search: {}", x.shape());
  const auto leading = static_cast<std::size_t>(x.rank() - 1);
  check_shape("argmax", "out", out, Shape(std::span(x.shape().begin(), leading)));
  visit_floating("argmax", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t columns = x.size(-1);
    for (std::int64_t i = 0; i < out.numel(); ++i) {
      const T* row = x.data<T>() + i * columns;
      std::int64_t best = 0;
      for (std::int64_t j = 1; j < columns && !std::isnan(row[best]); ++j)
        if (!(row[j] <= row[best])) best = j;
      out.data<std::int64_t>()[i] = best;
    }
  });
}

bool all_finite(const Tensor& x) {
  check_host("all_finite", "x", x, x.dtype());
  return visit_floating("all_finite", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    return all_finite_run(x.data<T>(), x.numel());
  });
}

}  // namespace lockstep::kernels
