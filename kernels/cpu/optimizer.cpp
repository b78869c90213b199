#include "lockstep/kernels/cpu/backend.h"
#include "lockstep/kernels/formulas/optimizer_formulas.h"
#include "lockstep/kernels/formulas/with_flag.h"

namespace lockstep::kernels {
namespace {

// The pointers of one item never overlap (__restrict): each names memory of its own.

template <class T, bool decay>
void sgd_plain_loop(T* __restrict value, const T* __restrict gradient, std::int64_t n,
                    const SgdScalars<T> s) {
  for (std::int64_t i = 0; i < n; ++i) sgd_plain(value[i], gradient[i], s, decay);
}

template <class T, bool decay, bool nesterov>
void sgd_momentum_loop(T* __restrict value, const T* __restrict gradient, T* __restrict buffer,
                       std::int64_t n, const SgdScalars<T> s) {
  for (std::int64_t i = 0; i < n; ++i)
    sgd_momentum(value[i], gradient[i], buffer[i], s, decay, nesterov);
}

template <class T>
void sgd_item(const SgdItem& item, const SgdConfig& config) {
  T* value = item.value.data<T>();
  const T* gradient = item.gradient.data<T>();
  const std::int64_t n = item.value.numel();
  const auto scalars = SgdScalars<T>::of(config, item.first);
  with_flag(config.weight_decay != 0, [&](auto decay) {
    if (config.momentum == 0) return sgd_plain_loop<T, decay>(value, gradient, n, scalars);
    if (item.first) item.momentum.fill_zero();  // momentum * 0 + 1 * g is g
    with_flag(config.nesterov, [&](auto nesterov) {
      sgd_momentum_loop<T, decay, nesterov>(value, gradient, item.momentum.data<T>(), n, scalars);
    });
  });
}

template <class T, bool decay, bool from_end>
void adam_loop(T* __restrict value, const T* __restrict gradient, T* __restrict mean,
               T* __restrict variance, std::int64_t n, const AdamScalars<T> s) {
  for (std::int64_t i = 0; i < n; ++i)
    adam(value[i], gradient[i], mean[i], variance[i], s, decay, from_end);
}

template <class T>
void adam_item(const AdamItem& item, const AdamConfig& config) {
  const auto scalars = AdamScalars<T>::of(config, ++*item.step.data<std::int64_t>());
  with_flag(adam_decays_gradient(config), [&](auto decay) {
    with_flag(adam_lerps_from_end(config), [&](auto from_end) {
      adam_loop<T, decay, from_end>(item.value.data<T>(), item.gradient.data<T>(),
                                    item.mean.data<T>(), item.variance.data<T>(),
                                    item.value.numel(), scalars);
    });
  });
}

}  // namespace

void CpuBackend::sgd_step(std::span<const SgdItem> items, const SgdConfig& config) {
  for (const SgdItem& item : items)
    visit_floating("sgd_step", item.value.dtype(),
                   [&](auto zero) { sgd_item<decltype(zero)>(item, config); });
}

void CpuBackend::adam_step(std::span<const AdamItem> items, const AdamConfig& config) {
  for (const AdamItem& item : items)
    visit_floating("adam_step", item.value.dtype(),
                   [&](auto zero) { adam_item<decltype(zero)>(item, config); });
}

}  // namespace lockstep::kernels
