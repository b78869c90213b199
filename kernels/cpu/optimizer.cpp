#include "lockstep/kernels/optimizer.h"

#include <cmath>

#include "lockstep/kernels/checks.h"
#include "lockstep/kernels/cpu/with_flag.h"

namespace lockstep::kernels {
namespace {

void check_item(std::string_view operation, std::string_view name, const Tensor& tensor,
                const Tensor& value) {
  check_host(operation, name, tensor, value.dtype());
  check_shape(operation, name, tensor, value.shape());
}

// The pointers of one item never overlap (__restrict): each names memory of its own.

template <class T, bool decay>
void sgd_plain(T* __restrict value, const T* __restrict gradient, std::int64_t n,
               const SgdConfig& config) {
  const T minus_lr = static_cast<T>(-config.lr), weight_decay = static_cast<T>(config.weight_decay);
  for (std::int64_t i = 0; i < n; ++i) {
    T g = gradient[i];
    if constexpr (decay) g += weight_decay * value[i];
    value[i] += minus_lr * g;
  }
}

template <class T, bool decay, bool nesterov>
void sgd_momentum(T* __restrict value, const T* __restrict gradient, T* __restrict buffer,
                  std::int64_t n, const SgdConfig& config, double dampening) {
  const T minus_lr = static_cast<T>(-config.lr), weight_decay = static_cast<T>(config.weight_decay);
  const T momentum = static_cast<T>(config.momentum), gain = static_cast<T>(1 - dampening);
  for (std::int64_t i = 0; i < n; ++i) {
    T g = gradient[i];
    if constexpr (decay) g += weight_decay * value[i];
    const T b = momentum * buffer[i] + gain * g;
    buffer[i] = b;
    value[i] += minus_lr * (nesterov ? g + momentum * b : b);
  }
}

template <class T>
void sgd_item(const SgdItem& item, const SgdConfig& config) {
  T* value = item.value.data<T>();
  const T* gradient = item.gradient.data<T>();
  const std::int64_t n = item.value.numel();
  with_flag(config.weight_decay != 0, [&](auto decay) {
    if (config.momentum == 0) return sgd_plain<T, decay>(value, gradient, n, config);
    if (item.first) item.momentum.fill_zero();  // momentum * 0 + 1 * g is g
    const double dampening = item.first ? 0 : config.dampening;
    with_flag(config.nesterov, [&](auto nesterov) {
      sgd_momentum<T, decay, nesterov>(value, gradient, item.momentum.data<T>(), n, config,
                                       dampening);
    });
  });
}

/// The scalars of one step, computed in f64 as Python does.
template <class T>
struct AdamScalars {
  AdamScalars(const AdamConfig& c, std::int64_t step)
      : shrink(static_cast<T>(c.decoupled ? 1 - c.lr * c.weight_decay : 1)),
        weight_decay(static_cast<T>(c.weight_decay)),
        mean_weight(static_cast<T>(1 - c.beta1)),
        mean_keep(static_cast<T>(1 - (1 - c.beta1))),
        beta2(static_cast<T>(c.beta2)),
        variance_weight(static_cast<T>(1 - c.beta2)),
        root_correction(
            static_cast<T>(std::sqrt(1 - std::pow(c.beta2, static_cast<double>(step))))),
        eps(static_cast<T>(c.eps)),
        minus_step_size(
            static_cast<T>(-c.lr / (1 - std::pow(c.beta1, static_cast<double>(step))))) {}
  T shrink, weight_decay, mean_weight, mean_keep, beta2, variance_weight, root_correction, eps,
      minus_step_size;
};

/// `lerp_from_end`: PyTorch's lerp(a, b, w) is a + w (b - a) for w < 1/2, else b - (b - a) (1 - w).
template <class T, bool decay, bool lerp_from_end>
void adam_loop(T* __restrict value, const T* __restrict gradient, T* __restrict mean,
               T* __restrict variance, std::int64_t n, const AdamScalars<T> s) {
  for (std::int64_t i = 0; i < n; ++i) {
    T g = gradient[i];
    if constexpr (decay) g += s.weight_decay * value[i];
    const T difference = g - mean[i];
    const T m = lerp_from_end ? g - difference * s.mean_keep : mean[i] + s.mean_weight * difference;
    const T v = variance[i] * s.beta2 + s.variance_weight * g * g;
    mean[i] = m;
    variance[i] = v;
    const T denominator = std::sqrt(v) / s.root_correction + s.eps;
    value[i] = value[i] * s.shrink + s.minus_step_size * m / denominator;
  }
}

template <class T>
void adam_item(const AdamItem& item, const AdamConfig& config) {
  const AdamScalars<T> scalars(config, item.step);
  with_flag(config.weight_decay != 0 && !config.decoupled, [&](auto decay) {
    with_flag(1 - config.beta1 >= 0.5, [&](auto lerp_from_end) {
      adam_loop<T, decay, lerp_from_end>(item.value.data<T>(), item.gradient.data<T>(),
                                         item.mean.data<T>(), item.variance.data<T>(),
                                         item.value.numel(), scalars);
    });
  });
}

}  // namespace

void sgd_step(std::span<const SgdItem> items, const SgdConfig& config) {
  for (const SgdItem& item : items) {
    check_host("sgd_step", "value", item.value, item.value.dtype());
    check_item("sgd_step", "gradient", item.gradient, item.value);
    if (config.momentum != 0) check_item("sgd_step", "momentum", item.momentum, item.value);
    visit_floating("sgd_step", item.value.dtype(),
                   [&](auto zero) { sgd_item<decltype(zero)>(item, config); });
  }
}

void adam_step(std::span<const AdamItem> items, const AdamConfig& config) {
  for (const AdamItem& item : items) {
    check_host("adam_step", "value", item.value, item.value.dtype());
    check_item("adam_step", "gradient", item.gradient, item.value);
    check_item("adam_step", "mean", item.mean, item.value);
    check_item("adam_step", "variance", item.variance, item.value);
    check<StateError>(item.step >= 1, "[adam_step] step: expected at least 1, got {}", item.step);
    visit_floating("adam_step", item.value.dtype(),
                   [&](auto zero) { adam_item<decltype(zero)>(item, config); });
  }
}

}  // namespace lockstep::kernels
