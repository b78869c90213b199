#include "lockstep/kernels/cpu/backend.h"
#include "lockstep/kernels/cpu/rows.h"
#include "lockstep/kernels/cpu/sums.h"

namespace lockstep::kernels {
namespace {

/// Calls f(row) with the row's offset, for every row that has elements.
template <class F>
void for_each_row_of(const Tensor& matrix, F&& f) {
  const std::int64_t columns = matrix.size(1);
  if (columns == 0) return;
  for (std::int64_t offset = 0; offset < matrix.numel(); offset += columns) f(offset);
}

}  // namespace

void CpuBackend::softmax(const Tensor& x, const Tensor& out) {
  visit_floating("softmax", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t n = x.size(1);
    for_each_row_of(x, [&](std::int64_t offset) {
      const T* row = x.data<T>() + offset;
      T* y = out.data<T>() + offset;
      const T total = static_cast<T>(row_exp_sum(row, n, row_max(row, n), y));
      for (std::int64_t i = 0; i < n; ++i) y[i] /= total;
    });
  });
}

void CpuBackend::log_softmax(const Tensor& x, const Tensor& out) {
  visit_floating("log_softmax", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t n = x.size(1);
    for_each_row_of(x, [&](std::int64_t offset) {
      const T* row = x.data<T>() + offset;
      T* y = out.data<T>() + offset;
      const T largest = row_max(row, n);
      const T log_total = static_cast<T>(std::log(row_exp_sum<T>(row, n, largest, nullptr)));
      for (std::int64_t i = 0; i < n; ++i) y[i] = row[i] - largest - log_total;
    });
  });
}

void CpuBackend::logsumexp(const Tensor& x, const Tensor& out) {
  visit_floating("logsumexp", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t n = x.size(1);
    for (std::int64_t i = 0; i < x.size(0); ++i) {
      const T* row = x.data<T>() + i * n;
      const T largest = row_max(row, n), shift = std::isinf(largest) ? T(0) : largest;
      const double total = row_exp_sum<T>(row, n, shift, nullptr);
      out.data<T>()[i] = static_cast<T>(std::log(total) + static_cast<double>(shift));
    }
  });
}

void CpuBackend::log_softmax_backward(const Tensor& dy, const Tensor& y, const Tensor& dx,
                                      bool accumulate) {
  visit_floating("log_softmax_backward", dy.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t n = dy.size(1);
    for_each_row_of(dy, [&](std::int64_t offset) {
      const T* from = dy.data<T>() + offset;
      const T* log_p = y.data<T>() + offset;
      T* to = dx.data<T>() + offset;
      const T total = static_cast<T>(sum_run(from, n));
      const auto gradient = [&](const Pack<T>& d, const Pack<T>& l) -> Pack<T> {
        return d - exponential<T, pack_size>(l) * total;
      };
      std::int64_t i = 0;
      for (; i + pack_size <= n; i += pack_size) {
        Pack<T> value = gradient(load(from + i), load(log_p + i));
        if (accumulate) value += load(to + i);
        store<T, pack_size>(to + i, value);
      }
      if (const std::int64_t rest = n - i; rest > 0) {
        Pack<T> value = gradient(load_first(from + i, rest), load_first(log_p + i, rest));
        if (accumulate) value += load_first(to + i, rest);
        store_first<T, pack_size>(to + i, rest, value);
      }
    });
  });
}

}  // namespace lockstep::kernels
