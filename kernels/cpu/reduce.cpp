#include <algorithm>
#include <cmath>

#include "lockstep/kernels/broadcast.h"
#include "lockstep/kernels/cpu/backend.h"
#include "lockstep/kernels/cpu/rows.h"
#include "lockstep/kernels/cpu/sums.h"

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
    Pack<T, width> total = sum_vectors<T, width>(x + column, rows, stride);
    if (accumulate) total = load<T, width>(out + column) + total;
    store<T, width>(out + column, total);
  }
  if (column == columns) return;
  if constexpr (width > 1)
    sum_columns<width / 4>(x + column, rows, columns - column, stride, out + column, accumulate);
}

/// sum_to where nothing simpler applies. `out` already holds what is added to.
template <class T>
void sum_general(const StridePlan& plan, const T* x, T* out) {
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
    for (std::int64_t i = begin; i < end; ++i)
      bad |= !(x[i] - x[i] == 0);  // NOLINT: inf - inf is NaN
    if (bad) return false;
  }
  return true;
}

}  // namespace

void CpuBackend::sum(const Tensor& x, const Tensor& out, bool accumulate, double scale) {
  visit_floating("sum", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    put(*out.data<T>(), static_cast<T>(scale) * sum_run(x.data<T>(), x.numel()), accumulate);
  });
}

void CpuBackend::sum_rows(const Tensor& x, const Tensor& out, bool accumulate) {
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

void CpuBackend::sum_cols(const Tensor& x, const Tensor& out, bool accumulate) {
  visit_floating("sum_cols", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t columns = x.size(1);
    T* to = out.data<T>();
    for (std::int64_t i = 0; i < x.size(0); ++i)
      put(to[i], sum_run(x.data<T>() + i * columns, columns), accumulate);
  });
}

void CpuBackend::sum_to(const Tensor& x, const Tensor& out, bool accumulate) {
  if (!accumulate) out.fill_zero();
  visit_floating("sum_to", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    sum_general(broadcast_plan(out.shape(), x.shape(), x.shape()), x.data<T>(), out.data<T>());
  });
}

void CpuBackend::argmax(const Tensor& x, const Tensor& out) {
  visit_floating("argmax", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t columns = x.size(-1);
    for (std::int64_t i = 0; i < out.numel(); ++i) {
      const T* row = x.data<T>() + i * columns;
      int unknown = 0;  // whether there is a NaN: the first of them counts as the largest
      for (std::int64_t j = 0; j < columns; ++j) unknown |= row[j] != row[j];
      out.data<std::int64_t>()[i] =
          (unknown ? std::find_if(row, row + columns, [](T v) { return std::isnan(v); })
                   : std::find(row, row + columns, row_max(row, columns))) -
          row;
    }
  });
}

void CpuBackend::find_nonfinite(const Tensor& x, const Tensor& flag) {
  visit_floating("find_nonfinite", x.dtype(), [&](auto zero) {
    if (!all_finite_run(x.data<decltype(zero)>(), x.numel())) *flag.data<std::int32_t>() = 1;
  });
}

}  // namespace lockstep::kernels
