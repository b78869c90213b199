#include <cmath>

#include "lockstep/kernels/cpu/backend.h"
#include "lockstep/kernels/cpu/packs.h"
#include "lockstep/kernels/formulas/clip_formulas.h"

namespace lockstep::kernels {
namespace {

/// In 16 partial sums, of every sixteenth element each, that are added by halves.
template <class T>
double sum_of_squares(const T* x, std::int64_t n) {
  const auto squares = [](const Pack<T>& values) {
    return values.template cast<double>().square().eval();
  };
  Pack<double> total = Pack<double>::Zero();
  std::int64_t i = 0;
  for (; i + pack_size <= n; i += pack_size) total += squares(load(x + i));
  if (i < n) total += squares(load_first(x + i, n - i));
  return fold<double, pack_size>(total);
}

template <class T, class Formula>
void apply(const Tensor& tensor, const Formula formula) {
  if (formula.changes_nothing()) return;
  T* x = tensor.data<T>();
  const std::int64_t n = tensor.numel();
  for (std::int64_t i = 0; i < n; ++i) x[i] = formula(x[i]);
}

}  // namespace

void CpuBackend::global_norm(std::span<const Tensor> tensors, const Tensor& out) {
  double total = 0;
  for (const Tensor& tensor : tensors)
    total += visit_floating("global_norm", tensor.dtype(), [&](auto zero) {
      return sum_of_squares(tensor.data<decltype(zero)>(), tensor.numel());
    });
  *out.data<double>() = std::sqrt(total);
}

void CpuBackend::clip_by_norm(std::span<const Tensor> tensors, const Tensor& norm,
                              double max_norm) {
  for (const Tensor& tensor : tensors)
    visit_floating("clip_by_norm", tensor.dtype(), [&]<class T>(T) {
      apply<T>(tensor, ByNorm<T>::of(*norm.data<double>(), max_norm));
    });
}

void CpuBackend::clip_by_value(std::span<const Tensor> tensors, double limit) {
  for (const Tensor& tensor : tensors)
    visit_floating("clip_by_value", tensor.dtype(),
                   [&]<class T>(T) { apply<T>(tensor, ByValue<T>{static_cast<T>(limit)}); });
}

}  // namespace lockstep::kernels
