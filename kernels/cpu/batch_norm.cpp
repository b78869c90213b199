#include "lockstep/kernels/batch_norm.h"

#include "lockstep/kernels/cpu/backend.h"
#include "lockstep/kernels/cpu/sums.h"
#include "lockstep/kernels/formulas/batch_norm_parts.h"
#include "lockstep/kernels/formulas/with_flag.h"

namespace lockstep::kernels {
namespace {

// Statistics and sums over the rows are computed in f64, whatever the dtype of x. Elements are
// normalized in their own, and lose nothing by it: the mean is subtracted in two parts.

/// f(first column, number of columns) for blocks that cover all of them.
template <class F>
void for_each_block(std::int64_t columns, const F& f) {
  for (std::int64_t begin = 0; begin < columns; begin += columns_of_sums)
    f(begin, std::min(columns - begin, columns_of_sums));
}

/// A number of each of a block's columns, in the dtype of the elements.
template <class T>
using OfColumns = std::array<T, columns_of_sums>;

/// What x - mean is made of: (x - high) - low.
template <class T>
struct Centers {
  OfColumns<T> high, low;

  Centers(const double* mean, std::int64_t count) {
    for (std::int64_t j = 0; j < count; ++j) {
      high[j] = static_cast<T>(mean[j]);
      low[j] = static_cast<T>(mean[j] - static_cast<double>(high[j]));
    }
  }
};

}  // namespace

void CpuBackend::batch_statistics(const Tensor& x, const Tensor& mean, const Tensor& m2) {
  visit_floating("batch_statistics", x.dtype(), [&](auto zero) {
    const auto* const values = x.data<decltype(zero)>();
    const std::int64_t rows = x.size(0), columns = x.size(1);
    for_each_block(columns, [&](std::int64_t begin, std::int64_t count) {
      const auto element = [=](std::int64_t row, std::int64_t j) {
        return static_cast<double>(values[row * columns + begin + j]);
      };
      // From the first row, so that the mean of equal elements is exact.
      const auto difference = [=](std::int64_t row, std::int64_t j) {
        return element(row, j) - element(0, j);
      };
      double* const center = mean.data<double>() + begin;
      sum_columns(0, rows, count, difference, center);
      for (std::int64_t j = 0; rows > 0 && j < count; ++j)
        center[j] = element(0, j) + center[j] / static_cast<double>(rows);
      const auto square = [=](std::int64_t row, std::int64_t j) {
        const double deviation = element(row, j) - center[j];
        return deviation * deviation;
      };
      sum_columns(0, rows, count, square, m2.data<double>() + begin);
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
    for_each_block(columns, [&](std::int64_t begin, std::int64_t count) {
      const Centers<T> center(mean.data<double>() + begin, count);
      OfColumns<T> factor, shift;
      for (std::int64_t j = 0; j < count; ++j) {
        const double scale = inverse_std.data<double>()[begin + j];
        factor[j] = static_cast<T>(w ? scale * static_cast<double>(w[begin + j]) : scale);
        shift[j] = b ? b[begin + j] : T(0);
      }
      for (std::int64_t i = begin; i < rows * columns; i += columns)
        for (std::int64_t j = 0; j < count; ++j)
          to[i + j] = ((from[i + j] - center.high[j]) - center.low[j]) * factor[j] + shift[j];
    });
  });
}

void CpuBackend::batch_norm_sums(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                 const Tensor& inverse_std, const Tensor& sum_dy,
                                 const Tensor& sum_dy_xhat) {
  visit_floating("batch_norm_sums", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t rows = x.size(0), columns = x.size(1);
    for_each_block(columns, [&](std::int64_t begin, std::int64_t count) {
      const T *values = x.data<T>() + begin, *gradients = dy.data<T>() + begin;
      const double* const center = mean.data<double>() + begin;
      const double* const scale = inverse_std.data<double>() + begin;
      const auto gradient = [=](std::int64_t row, std::int64_t j) {
        return static_cast<double>(gradients[row * columns + j]);
      };
      const auto product = [=](std::int64_t row, std::int64_t j) {
        const auto value = static_cast<double>(values[row * columns + j]);
        return gradient(row, j) * ((value - center[j]) * scale[j]);
      };
      sum_columns(0, rows, count, gradient, sum_dy.data<double>() + begin);
      sum_columns(0, rows, count, product, sum_dy_xhat.data<double>() + begin);
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
    const T *from = x.data<T>(), *gradients = dy.data<T>(),
            *w = weight.defined() ? weight.data<T>() : nullptr;
    T* to = dx.data<T>();
    for_each_block(columns, [&](std::int64_t begin, std::int64_t count) {
      const Centers<T> center(mean.data<double>() + begin, count);
      OfColumns<T> factor, offset, slope;
      for (std::int64_t j = 0; j < count; ++j) {
        const double scale = inverse_std.data<double>()[begin + j];
        factor[j] = static_cast<T>(w ? scale * static_cast<double>(w[begin + j]) : scale);
        offset[j] = static_cast<T>(mean_dy.data<double>()[begin + j]);
        slope[j] = static_cast<T>(scale * mean_dy_xhat.data<double>()[begin + j]);
      }
      with_flag(accumulate, [&](auto add) {
        for (std::int64_t i = begin; i < rows * columns; i += columns)
          for (std::int64_t j = 0; j < count; ++j) {
            const T deviation = (from[i + j] - center.high[j]) - center.low[j];
            const T result = factor[j] * (gradients[i + j] - offset[j] - deviation * slope[j]);
            if constexpr (add)
              to[i + j] += result;
            else
              to[i + j] = result;
          }
      });
    });
  });
}

}  // namespace lockstep::kernels
