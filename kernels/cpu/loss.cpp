#include <cmath>

#include "lockstep/kernels/cpu/backend.h"
#include "lockstep/kernels/cpu/rows.h"

namespace lockstep::kernels {
namespace {

/// -log softmax(x)[label]; `saved`, unless null, becomes softmax(x) - onehot(label).
template <class T>
T cross_entropy_row(const T* x, std::int64_t classes, std::int64_t label, T* saved) {
  const T largest = row_max(x, classes);
  const T shifted = x[label] - largest;  // read before `saved`, which may be x, is written
  const T total = row_exp_sum(x, classes, largest, saved);
  if (saved) {
    for (std::int64_t i = 0; i < classes; ++i) saved[i] /= total;
    saved[label] -= 1;
  }
  return std::log(total) - shifted;
}

/// The sum of n terms as f64.
template <class F>
double sum_terms(std::int64_t n, F&& term) {
  double total = 0;
  for (std::int64_t i = 0; i < n; ++i) total += static_cast<double>(term(i));
  return total;
}

double mean(double total, std::int64_t n) { return n > 0 ? total / static_cast<double>(n) : 0; }

}  // namespace

void CpuBackend::cross_entropy(const Tensor& logits, const Tensor& labels, const Tensor& loss,
                               const Tensor& saved) {
  const std::int64_t rows = logits.size(0), classes = logits.size(1);
  visit_floating("cross_entropy", logits.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T* x = logits.data<T>();
    const std::int64_t* label = labels.data<std::int64_t>();
    T* to = saved.defined() ? saved.data<T>() : nullptr;
    const double total = sum_terms(rows, [&](std::int64_t i) {
      return cross_entropy_row(x + i * classes, classes, label[i], to ? to + i * classes : nullptr);
    });
    *loss.data<T>() = static_cast<T>(mean(total, rows));
  });
}

void CpuBackend::cross_entropy_backward(const Tensor& dloss, const Tensor& saved,
                                        const Tensor& dlogits, bool accumulate) {
  broadcast_to(saved, dlogits, accumulate, mean(dloss.item(), saved.size(0)));
}

void CpuBackend::mse(const Tensor& x, const Tensor& y, const Tensor& loss) {
  visit_floating("mse", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T *a = x.data<T>(), *b = y.data<T>();
    const double total = sum_terms(x.numel(), [&](std::int64_t i) {
      const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
      return difference * difference;
    });
    *loss.data<T>() = static_cast<T>(mean(total, x.numel()));
  });
}

void CpuBackend::mse_backward(const Tensor& dloss, const Tensor& x, const Tensor& y,
                              const Tensor& dx, bool accumulate) {
  visit_floating("mse_backward", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T *a = x.data<T>(), *b = y.data<T>();
    T* to = dx.data<T>();
    const T factor = static_cast<T>(mean(2 * dloss.item(), x.numel()));
    for (std::int64_t i = 0, n = x.numel(); i < n; ++i) {
      const T gradient = factor * (a[i] - b[i]);
      to[i] = accumulate ? to[i] + gradient : gradient;
    }
  });
}

}  // namespace lockstep::kernels
