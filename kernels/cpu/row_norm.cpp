#include <cmath>
#include <vector>

#include "lockstep/kernels/batch_norm.h"
#include "lockstep/kernels/cpu/backend.h"
#include "lockstep/kernels/cpu/sums.h"
#include "lockstep/kernels/formulas/with_flag.h"

namespace lockstep::kernels {
namespace {

/// xhat of a row's elements, in their own dtype. The mean is subtracted in two parts: rounded, it
/// could be wrong by more than the deviations.
template <class T>
struct Row {
  T mean, rest, scale;

  Row(double m, double inverse_std)
      : mean(static_cast<T>(m)),
        rest(static_cast<T>(m - static_cast<double>(mean))),
        scale(static_cast<T>(inverse_std)) {}
  T operator()(T x) const { return ((x - mean) - rest) * scale; }
};

/// f(row, its offset, what makes xhat of it) for each.
template <class T, class F>
void for_each_row_of(const Tensor& x, const Tensor& mean, const Tensor& inverse_std, const F& f) {
  for (std::int64_t i = 0; i < x.size(0); ++i)
    f(i * x.size(1), Row<T>(mean.data<double>()[i], inverse_std.data<double>()[i]));
}

}  // namespace

void CpuBackend::row_normalize(const Tensor& x, const Tensor& weight, const Tensor& bias,
                               const RowNormConfig& config, const Tensor& out, const Tensor& mean,
                               const Tensor& inverse_std) {
  const std::int64_t n = x.size(1);
  const auto count = static_cast<double>(n);
  visit_floating("row_normalize", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T *w = weight.defined() ? weight.data<T>() : nullptr,
            *b = bias.defined() ? bias.data<T>() : nullptr;
    for (std::int64_t i = 0; i < x.size(0); ++i) {
      const T* const row = x.data<T>() + i * n;
      const double m = config.centered ? sum_run(row, n) / count : 0;
      const auto deviation = [m](const auto& v) -> SumPack {
        return (v.template cast<double>() - m).square();
      };
      const double squares = sum_terms(n, deviation, row);
      mean.data<double>()[i] = m;
      inverse_std.data<double>()[i] = 1 / std::sqrt(squares / count + config.eps);
    }
    for_each_row_of<T>(x, mean, inverse_std, [&](std::int64_t offset, const Row<T>& xhat) {
      const T* const row = x.data<T>() + offset;
      T* const to = out.data<T>() + offset;
      with_flag(w != nullptr, [&](auto scaled) {
        with_flag(b != nullptr, [&](auto shifted) {
          for (std::int64_t j = 0; j < n; ++j) {
            T y = xhat(row[j]);
            if constexpr (scaled) y *= w[j];
            if constexpr (shifted) y += b[j];
            to[j] = y;
          }
        });
      });
    });
  });
}

void CpuBackend::row_norm_dweight(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                  const Tensor& inverse_std, const Tensor& dweight,
                                  bool accumulate) {
  const std::int64_t n = x.size(1);
  visit_floating("row_norm_dweight", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    double sums[columns_of_sums];
    for (std::int64_t begin = 0; begin < n; begin += columns_of_sums) {
      const std::int64_t count = std::min(n - begin, columns_of_sums);
      const T *from = x.data<T>() + begin, *gradient = dy.data<T>() + begin;
      const double *m = mean.data<double>(), *s = inverse_std.data<double>();
      const auto product = [=](std::int64_t row, std::int64_t j) {
        return static_cast<double>(gradient[row * n + j]) *
               ((static_cast<double>(from[row * n + j]) - m[row]) * s[row]);
      };
      sum_columns(0, x.size(0), count, product, sums);
      T* const to = dweight.data<T>() + begin;
      for (std::int64_t j = 0; j < count; ++j)
        to[j] = accumulate ? to[j] + static_cast<T>(sums[j]) : static_cast<T>(sums[j]);
    }
  });
}

void CpuBackend::row_norm_dx(const Tensor& dy, const Tensor& x, const Tensor& mean,
                             const Tensor& inverse_std, const Tensor& weight,
                             const RowNormConfig& config, const Tensor& dx, bool accumulate) {
  const std::int64_t n = x.size(1);
  const auto count = static_cast<double>(n);
  visit_floating("row_norm_dx", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    std::vector<T> ones(static_cast<std::size_t>(weight.defined() ? 0 : n), T(1));
    const T* const w = weight.defined() ? weight.data<T>() : ones.data();
    std::vector<T> g(static_cast<std::size_t>(n)), xhat(static_cast<std::size_t>(n));
    for_each_row_of<T>(x, mean, inverse_std, [&](std::int64_t offset, const Row<T>& make) {
      const T *from = x.data<T>() + offset, *gradient = dy.data<T>() + offset;
      T* const to = dx.data<T>() + offset;
      for (std::int64_t j = 0; j < n; ++j) g[j] = gradient[j] * w[j], xhat[j] = make(from[j]);
      const T offset_of_g = config.centered ? static_cast<T>(sum_run(g.data(), n) / count) : T(0);
      const auto product = [](const auto& a, const auto& b) -> SumPack {
        return a.template cast<double>() * b.template cast<double>();
      };
      const T slope = static_cast<T>(sum_terms(n, product, g.data(), xhat.data()) / count);
      with_flag(accumulate, [&](auto add) {
        for (std::int64_t j = 0; j < n; ++j) {
          const T value = make.scale * (g[j] - offset_of_g - xhat[j] * slope);
          to[j] = add ? to[j] + value : value;
        }
      });
    });
  });
}

}  // namespace lockstep::kernels
