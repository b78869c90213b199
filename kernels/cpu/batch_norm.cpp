#include "lockstep/kernels/cpu/backend.h"
#include "lockstep/kernels/cpu/sums.h"
#include "lockstep/kernels/formulas/batch_norm_parts.h"

namespace lockstep::kernels {
namespace {

// Everything is computed in f64, whatever the dtype of x. Statistics and sums over the rows go down
// as many columns at a time as fit into registers: first 16, then 4, then 1.

constexpr std::int64_t rows_at_once = 128;

/// of(first row, rows) of all rows, merged pairwise where they are many: the tree of sums.h.
template <class Of>
auto pairwise(std::int64_t begin, std::int64_t rows, const Of& of) {
  if (rows <= rows_at_once) return of(begin, rows);
  const std::int64_t cut = pairwise_cut(rows);
  auto left = pairwise(begin, cut, of);
  left.merge(pairwise(begin + cut, rows - cut, of));
  return left;
}

/// Calls f(first column, width as a constant) for blocks of columns that cover all of them.
template <int width = pack_size, class F>
void for_each_column_block(std::int64_t columns, const F& f, std::int64_t column = 0) {
  for (; column + width <= columns; column += width)
    f(column, std::integral_constant<int, width>{});
  if constexpr (width > 1) for_each_column_block<width / 4>(columns, f, column);
}

/// `width` neighbours in f64.
template <int width, class T>
Pack<double, width> load_f64(const T* x) {
  return load<T, width>(x).template cast<double>();
}

template <int width, class T>
Moments<Pack<double, width>> moments(const T* x, std::int64_t rows, std::int64_t stride) {
  using V = Pack<double, width>;
  return pairwise(0, rows, [&](std::int64_t begin, std::int64_t n) {
    Moments<V> result{0, V::Zero(), V::Zero()};
    for (std::int64_t row = begin; row < begin + n; ++row) {
      result.count += 1;
      result.add(load_f64<width>(x + row * stride), 1 / result.count);
    }
    return result;
  });
}

}  // namespace

void CpuBackend::batch_statistics(const Tensor& x, const Tensor& mean, const Tensor& m2) {
  visit_floating("batch_statistics", x.dtype(), [&](auto zero) {
    const auto* values = x.data<decltype(zero)>();
    const std::int64_t rows = x.size(0), columns = x.size(1);
    for_each_column_block(columns, [&](std::int64_t column, auto width) {
      const auto result = moments<width>(values + column, rows, columns);
      store<double, width>(mean.data<double>() + column, result.mean);
      store<double, width>(m2.data<double>() + column, result.m2);
    });
  });
}

void CpuBackend::batch_inverse_std(const Tensor& m2, double count, double eps, const Tensor& out) {
  for (std::int64_t c = 0; c < m2.numel(); ++c)
    out.data<double>()[c] = inverse_std_of(m2.data<double>()[c], count, eps);
}

void CpuBackend::batch_normalize(const Tensor& x, const Tensor& mean, const Tensor& inverse_std,
                                 const Tensor& weight, const Tensor& bias, const Tensor& out) {
  visit_floating("batch_normalize", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t rows = x.size(0), columns = x.size(1);
    const T *from = x.data<T>(), *w = weight.defined() ? weight.data<T>() : nullptr,
            *b = bias.defined() ? bias.data<T>() : nullptr;
    T* to = out.data<T>();
    for_each_column_block(columns, [&](std::int64_t column, auto width) {
      using V = Pack<double, width>;
      const V center = load<double, width>(mean.data<double>() + column);
      V factor = load<double, width>(inverse_std.data<double>() + column), shift = V::Zero();
      if (w) factor *= load_f64<width>(w + column);
      if (b) shift = load_f64<width>(b + column);
      for (std::int64_t i = column; i < rows * columns; i += columns) {
        const V y = (load_f64<width>(from + i) - center) * factor + shift;
        store<T, width>(to + i, y.template cast<T>());
      }
    });
  });
}

void CpuBackend::batch_norm_sums(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                 const Tensor& inverse_std, const Tensor& sum_dy,
                                 const Tensor& sum_dy_xhat) {
  visit_floating("batch_norm_sums", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t rows = x.size(0), columns = x.size(1);
    for_each_column_block(columns, [&](std::int64_t column, auto width) {
      using V = Pack<double, width>;
      const V center = load<double, width>(mean.data<double>() + column);
      const V scale = load<double, width>(inverse_std.data<double>() + column);
      const T *x_at = x.data<T>() + column, *dy_at = dy.data<T>() + column;
      const auto sums = pairwise(0, rows, [&](std::int64_t begin, std::int64_t n) {
        GradientSums<V> result{V::Zero(), V::Zero()};
        for (std::int64_t row = begin; row < begin + n; ++row) {
          const V gradient = load_f64<width>(dy_at + row * columns);
          const V xhat = (load_f64<width>(x_at + row * columns) - center) * scale;
          result.dy += gradient;
          result.dy_xhat += gradient * xhat;
        }
        return result;
      });
      store<double, width>(sum_dy.data<double>() + column, sums.dy);
      store<double, width>(sum_dy_xhat.data<double>() + column, sums.dy_xhat);
    });
  });
}

void CpuBackend::batch_norm_dx(const Tensor& dy, const Tensor& x, const Tensor& mean,
                               const Tensor& inverse_std, const Tensor& weight,
                               const Tensor& mean_dy, const Tensor& mean_dy_xhat, const Tensor& dx,
                               bool accumulate) {
  visit_floating("batch_norm_dx", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t rows = x.size(0), columns = x.size(1);
    const T *x_at = x.data<T>(), *dy_at = dy.data<T>();
    T* to = dx.data<T>();
    for_each_column_block(columns, [&](std::int64_t column, auto width) {
      using V = Pack<double, width>;
      const auto channel = [&](const Tensor& tensor) {
        return load<double, width>(tensor.data<double>() + column);
      };
      const V center = channel(mean), scale = channel(inverse_std), offset = channel(mean_dy),
              slope = channel(mean_dy_xhat);
      V factor = scale;
      if (weight.defined()) factor *= load_f64<width>(weight.data<T>() + column);
      for (std::int64_t i = column; i < rows * columns; i += columns) {
        const V xhat = (load_f64<width>(x_at + i) - center) * scale;
        const V exact = factor * (load_f64<width>(dy_at + i) - offset - xhat * slope);
        Pack<T, width> result = exact.template cast<T>();
        if (accumulate) result += load<T, width>(to + i);
        store<T, width>(to + i, result);
      }
    });
  });
}

}  // namespace lockstep::kernels
