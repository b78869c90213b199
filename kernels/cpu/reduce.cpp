#include <algorithm>
#include <cmath>
#include <span>

#include "lockstep/kernels/broadcast.h"
#include "lockstep/kernels/cpu/backend.h"
#include "lockstep/kernels/cpu/rows.h"
#include "lockstep/kernels/cpu/sums.h"
#include "lockstep/kernels/formulas/with_flag.h"

namespace lockstep::kernels {
namespace {

/// x (outer, rows, columns), summed over the rows: put(index, sum) for each of (outer, columns).
template <class Term = AsTheyAre, class T, class Put>
void sum_middle(const T* x, std::int64_t outer, std::int64_t rows, std::int64_t columns,
                const Put& put) {
  if (columns == 1) {
    for (std::int64_t o = 0; o < outer; ++o) put(o, sum_run<Term>(x + o * rows, rows));
    return;
  }
  double sums[columns_of_sums];
  for (std::int64_t o = 0; o < outer; ++o)
    for (std::int64_t begin = 0; begin < columns; begin += columns_of_sums) {
      const std::int64_t count = std::min(columns - begin, columns_of_sums);
      const T* const from = x + o * rows * columns + begin;
      const auto value = [=](std::int64_t row, std::int64_t j) {
        return Term{}(static_cast<double>(from[row * columns + j]));
      };
      sum_columns(0, rows, count, value, sums);
      for (std::int64_t j = 0; j < count; ++j) put(o * columns + begin + j, sums[j]);
    }
}

/// For sum_middle: into `out`, rounded once.
template <class T>
auto into(const Tensor& out, bool accumulate, double divisor) {
  return [to = out.data<T>(), accumulate, divisor](std::int64_t i, double sum) {
    const T value = static_cast<T>(sum / divisor);
    to[i] = accumulate ? to[i] + value : value;
  };
}

/// put(i, sum) for element i of what broadcasts by `plan` to x, which has n > 0 elements: sums over
/// one dimension after the other, the innermost first. `Term` is for the elements of x alone.
template <class Term = AsTheyAre, class T, class Put>
void sum_plan(const StridePlan& plan, const T* x, std::int64_t n, const Put& put) {
  const auto strides = std::span(plan.stride_a).first(static_cast<std::size_t>(plan.rank));
  const auto d = static_cast<std::size_t>(std::ranges::find(strides, 0) - strides.begin());
  if (d == strides.size()) {
    for (std::int64_t i = 0; i < n; ++i) put(i, Term{}(static_cast<double>(x[i])));
    return;
  }
  std::int64_t inner = 1;
  for (std::size_t k = 0; k < d; ++k) inner *= plan.sizes[k];
  const std::int64_t rows = plan.sizes[d], outer = n / (rows * inner);
  if (std::ranges::count(strides, 0) == 1) return sum_middle<Term>(x, outer, rows, inner, put);
  const Tensor sums = Tensor::empty({outer * inner}, DType::f64);
  sum_middle<Term>(x, outer, rows, inner, into<double>(sums, false, 1));
  StridePlan left = plan;
  left.sizes[d] = left.stride_a[d] = 1;
  sum_plan(left, sums.data<double>(), sums.numel(), put);
}

/// Whether b comes before a, which came first.
template <bool least, class T>
bool beats(T b, T a) {
  return !(least ? b >= a : b <= a) && a == a;  // NOLINT: NaN beats numbers, nothing beats it
}

/// Where the first of n neighbours is that equals `value`; there is one.
template <class T>
std::int64_t find_equal(const T* x, std::int64_t n, T value) {
  constexpr std::int64_t block = 64;
  std::int64_t begin = 0;
  for (int here = 0; begin + block <= n; begin += block) {
    for (std::int64_t j = begin; j < begin + block; ++j) here |= x[j] == value;
    if (here) break;
  }
  return std::find(x + begin, x + n, value) - x;
}

/// Where the largest (`least`: the smallest) of n > 0 neighbours is, the first of equals.
template <bool least, class T>
std::int64_t place_in_run(const T* x, std::int64_t n) {
  constexpr std::int64_t block = 1024;  // stays in the first-level cache
  T best = x[0];
  std::int64_t at = 0;  // of the best, or where the block firsts in which it is
  for (std::int64_t first = 0; first < n; first += block) {
    const T* const from = x + first;
    const std::int64_t count = std::min(block, n - first);
    bool finite = false;
    const T candidate = row_extreme<least>(from, count, &finite);
    int unknown = 0;
    // NOLINTNEXTLINE: v != v is whether it is NaN
    for (std::int64_t j = finite ? count : 0; j < count; ++j) unknown |= from[j] != from[j];
    // NOLINTNEXTLINE
    if (unknown) return std::find_if(from, from + count, [](T v) { return v != v; }) - x;
    if (first == 0 || beats<least>(candidate, best)) best = candidate, at = first;
  }
  return at + find_equal(x + at, n - at, best);
}

/// The same for each of the columns of x (n, columns).
template <bool least, class T>
void places_in_columns(const T* x, std::int64_t n, std::int64_t columns, std::int64_t* out) {
  using Row = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  constexpr std::int64_t block = 512;
  T best[block];
  Row at[block];
  for (std::int64_t begin = 0; begin < columns; begin += block) {
    const std::int64_t count = std::min(block, columns - begin);
    std::copy_n(x + begin, count, best);
    std::fill_n(at, count, Row{0});
    for (std::int64_t row = 1; row < n; ++row) {
      const T* const from = x + row * columns + begin;
      for (std::int64_t j = 0; j < count; ++j) {
        const bool better = beats<least>(from[j], best[j]);
        best[j] = better ? from[j] : best[j];
        at[j] = better ? static_cast<Row>(row) : at[j];
      }
    }
    std::copy_n(at, count, out + begin);
  }
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

void CpuBackend::sum(const Tensor& x, const Tensor& out, bool accumulate, double divisor) {
  visit_floating("sum", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    sum_middle(x.data<T>(), 1, x.numel(), 1, into<T>(out, accumulate, divisor));
  });
}

void CpuBackend::sum_rows(const Tensor& x, const Tensor& out, bool accumulate, double divisor) {
  visit_floating("sum_rows", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    sum_middle(x.data<T>(), 1, x.size(0), x.size(1), into<T>(out, accumulate, divisor));
  });
}

void CpuBackend::sum_cols(const Tensor& x, const Tensor& out, bool accumulate, double divisor) {
  visit_floating("sum_cols", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    sum_middle(x.data<T>(), x.size(0), x.size(1), 1, into<T>(out, accumulate, divisor));
  });
}

void CpuBackend::sum_to(const Tensor& x, const Tensor& out, bool accumulate, double divisor) {
  visit_floating("sum_to", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    sum_plan(broadcast_plan(out.shape(), x.shape(), x.shape()), x.data<T>(), x.numel(),
             into<T>(out, accumulate, divisor));
  });
}

void CpuBackend::norm(const Tensor& x, const Tensor& out) {
  visit_floating("norm", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    sum_plan<Squares>(broadcast_plan(out.shape(), x.shape(), x.shape()), x.data<T>(), x.numel(),
                      [to = out.data<T>()](std::int64_t i, double squares) {
                        to[i] = static_cast<T>(std::sqrt(squares));
                      });
  });
}

void CpuBackend::argmax(const Tensor& x, bool smallest, const Tensor& out) {
  const std::int64_t n = x.size(1), inner = x.size(2);
  auto* const to = out.data<std::int64_t>();
  visit_floating("argmax", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    with_flag(smallest, [&](auto least) {
      for (std::int64_t o = 0; o < x.size(0); ++o) {
        const T* from = x.data<T>() + o * n * inner;
        if (inner == 1)
          to[o] = place_in_run<least>(from, n);
        else
          places_in_columns<least>(from, n, inner, to + o * inner);
      }
    });
  });
}

void CpuBackend::find_nonfinite(const Tensor& x, const Tensor& flag) {
  visit_floating("find_nonfinite", x.dtype(), [&](auto zero) {
    if (!all_finite_run(x.data<decltype(zero)>(), x.numel())) *flag.data<std::int32_t>() = 1;
  });
}

}  // namespace lockstep::kernels
