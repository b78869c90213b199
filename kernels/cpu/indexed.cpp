#include <algorithm>

#include "lockstep/kernels/backend/indexed_over.h"
#include "lockstep/kernels/cpu/backend.h"

namespace lockstep::kernels {
namespace {

/// The formula for n elements of a row. The strides are constants where they can be, so that the
/// compiler vectorizes.
template <class Formula>
void run_row(const Formula& formula, std::int64_t n, std::int64_t i, std::int64_t a,
             std::int64_t step_a, std::int64_t b, std::int64_t step_b) {
  if (step_a == 1 && step_b == 1)
    for (std::int64_t k = 0; k < n; ++k) formula(i + k, a + k, b + k);
  else if (step_a == 1 && step_b == 0)
    for (std::int64_t k = 0; k < n; ++k) formula(i + k, a + k, b);
  else if (step_a == 0 && step_b == 1)
    for (std::int64_t k = 0; k < n; ++k) formula(i + k, a, b + k);
  else
    for (std::int64_t k = 0; k < n; ++k) formula(i + k, a + k * step_a, b + k * step_b);
}

/// The two innermost dimensions. If one operand advances along the first and the other along the
/// second, in tiles: of at most 8 lines, which stay in the cache also where they are powers of two
/// apart.
template <class Formula>
void run_plane(const Formula& shared, std::int64_t i, std::int64_t a, std::int64_t b) {
  const Formula formula = shared;  // no byte that is written can be a part of this one
  const StridePlan& plan = formula.plan;
  const std::int64_t columns = plan.sizes[0], rows = plan.rank > 1 ? plan.sizes[1] : 1;
  const bool crossed = rows > 1 && plan.stride_a[0] != 1 && plan.stride_a[1] == 1;
  const std::int64_t side = crossed ? 8 : columns, height = crossed ? 32 : rows;
  for (std::int64_t top = 0; top < rows; top += height)
    for (std::int64_t left = 0; left < columns; left += side)
      for (std::int64_t row = top; row < std::min(top + height, rows); ++row)
        run_row(formula, std::min(side, columns - left), i + row * columns + left,
                a + row * plan.stride_a[1] + left * plan.stride_a[0], plan.stride_a[0],
                b + row * plan.stride_b[1] + left * plan.stride_b[0], plan.stride_b[0]);
}

constexpr std::int64_t columns_at_once = 64;

/// Where the next piece of a row begins.
std::int64_t end_of(std::int64_t column, std::int64_t inner) {
  return std::min(column + columns_at_once, (column / inner + 1) * inner);
}

/// out (count, inner) = rows of x (n, inner).
template <class Word>
void take_rows(const Taken& t, const std::int64_t* index, const Word* x, Word* out) {
  if (t.inner == 1)
    for (std::int64_t k = 0; k < t.count; ++k) out[k] = x[index[k]];
  else
    for (std::int64_t k = 0; k < t.count; ++k)
      std::copy_n(x + index[k] * t.inner, t.inner, out + k * t.inner);
}

template <class T>
void add_rows(const Taken& t, const std::int64_t* index, const T* dy, T* dx) {
  for (std::int64_t k = 0; k < t.count; ++k) {
    T* const row = dx + index[k] * t.inner;
    for (std::int64_t j = 0; j < t.inner; ++j) row[j] += dy[k * t.inner + j];
  }
}

/// The same with an index for each element.
template <class Word>
void take_elements(const Taken& t, const std::int64_t* index, const Word* x, Word* out) {
  if (t.inner == 1) return take_rows(t, index, x, out);
  for (std::int64_t k = 0; k < t.count; ++k)
    for (std::int64_t j = 0; j < t.inner; ++j)
      out[k * t.inner + j] = x[index[k * t.inner + j] * t.inner + j];
}

template <class T>
void add_elements(const Taken& t, const std::int64_t* index, const T* dy, T* dx) {
  for (std::int64_t k = 0; k < t.count; ++k)
    for (std::int64_t j = 0; j < t.inner; ++j)
      dx[index[k * t.inner + j] * t.inner + j] += dy[k * t.inner + j];
}

/// Columns [begin, end) of the o-th of the outer dimension.
template <class T>
void cumulate_columns(const CumulativeSumColumns<T>& f, std::int64_t o, std::int64_t begin,
                      std::int64_t end) {
  using Sum = typename CumulativeSumColumns<T>::Sum;
  Sum sums[columns_at_once] = {};
  for (std::int64_t k = 0; k < f.n; ++k) {
    const std::int64_t row = (o * f.n + (f.reverse ? f.n - 1 - k : k)) * f.inner;
    for (std::int64_t j = begin; j < end; ++j)
      f.out[row + j] =
          static_cast<T>(sums[j - begin] = Add{}(sums[j - begin], static_cast<Sum>(f.x[row + j])));
  }
}

/// Rows [begin, begin + rows) of n neighbours, side by side: an addition waits for the one before.
/// (Of many rows, whose elements may lie powers of two apart, a cache would not keep the lines.)
template <int rows, class T>
void sum_runs(const CumulativeSumColumns<T>& f, std::int64_t begin) {
  using Sum = typename CumulativeSumColumns<T>::Sum;
  Sum sums[rows] = {};
  const std::int64_t n = f.n, step = f.reverse ? -1 : 1;
  const T* from = f.x + begin * n + (f.reverse ? n - 1 : 0);
  T* to = f.out + begin * n + (f.reverse ? n - 1 : 0);
  for (std::int64_t k = 0; k < n; ++k, from += step, to += step)
    for (int row = 0; row < rows; ++row)
      to[row * n] = static_cast<T>(sums[row] = Add{}(sums[row], static_cast<Sum>(from[row * n])));
}

struct CpuLoop {
  static unsigned long long* fault(const Tensor&) { return nullptr; }

  template <class Formula>
  static void run(const Tensor&, std::int64_t n, const Formula& formula) {
    if constexpr (requires { formula.plan; })
      for_each_row<2>(formula.plan, [&](std::int64_t i, std::int64_t a, std::int64_t b) {
        run_plane(formula, i, a, b);
      });
    else
      for (std::int64_t i = 0; i < n; ++i) formula(i);
  }
  // Rows instead of elements or columns: the same results, closer in memory.
  template <class Word>
  static void run(const Tensor&, std::int64_t n, const TakeElements<Word>& f) {
    const Taken& t = f.indices.what;
    const std::int64_t size = t.count * t.inner;  // of what is taken, for each of the outer
    for (std::int64_t o = 0; n > 0 && o < t.outer; ++o)
      if (t.each)
        take_elements(t, f.indices.index + o * size, f.x + o * t.n * t.inner, f.out + o * size);
      else
        take_rows(t, f.indices.index, f.x + o * t.n * t.inner, f.out + o * size);
  }
  template <class T>
  static void run(const Tensor&, std::int64_t n, const AddTakenColumns<T>& f) {
    const Taken& t = f.indices.what;
    const std::int64_t size = t.count * t.inner;
    for (std::int64_t o = 0; n > 0 && o < t.outer; ++o)
      if (t.each)
        add_elements(t, f.indices.index + o * size, f.dy + o * size, f.dx + o * t.n * t.inner);
      else
        add_rows(t, f.indices.index, f.dy + o * size, f.dx + o * t.n * t.inner);
  }
  template <class T>
  static void run(const Tensor&, std::int64_t columns, const CumulativeSumColumns<T>& f) {
    std::int64_t i = 0;
    for (; f.inner == 1 && i + 2 <= columns; i += 2) sum_runs<2>(f, i);
    for (; f.inner == 1 && i < columns; ++i) sum_runs<1>(f, i);
    for (; i < columns; i = end_of(i, f.inner))
      cumulate_columns(f, i / f.inner, i % f.inner, i % f.inner + end_of(i, f.inner) - i);
  }
};

}  // namespace

IndexedFunctions& CpuBackend::indexed() {
  static IndexedOver<CpuLoop> functions;
  return functions;
}

}  // namespace lockstep::kernels
