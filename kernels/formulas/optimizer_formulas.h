#pragma once
/// The formulas of optimizer.h for one element: one text for the processor's loops and for the
/// threads of a GPU. The flags are arguments, so that a loop can make them constants. Compiled
/// without contraction into fused multiply-adds on both sides (kernels/CMakeLists.txt): the bits of
/// an element do not depend on the loop in which it is computed.

#include <cmath>
#include <cstdint>

#include "lockstep/kernels/formulas/functors.h"
#include "lockstep/kernels/optimizer.h"

namespace lockstep::kernels {

/// The scalars of one step, computed in f64 as Python does, then rounded.
template <class T>
struct SgdScalars {
  T minus_lr, weight_decay, momentum, gain;

  /// A tensor's `first` step is not dampened.
  static LOCKSTEP_HOST_DEVICE SgdScalars of(const SgdConfig& c, bool first) {
    return {static_cast<T>(-c.lr), static_cast<T>(c.weight_decay), static_cast<T>(c.momentum),
            static_cast<T>(first ? 1 : 1 - c.dampening)};
  }
};

template <class T>
LOCKSTEP_HOST_DEVICE inline T with_decay(T gradient, T value, T weight_decay, bool decay) {
  return decay ? gradient + weight_decay * value : gradient;
}

template <class T>
LOCKSTEP_HOST_DEVICE inline void sgd_plain(T& value, T gradient, const SgdScalars<T>& s,
                                           bool decay) {
  value += s.minus_lr * with_decay(gradient, value, s.weight_decay, decay);
}

template <class T>
LOCKSTEP_HOST_DEVICE inline void sgd_momentum(T& value, T gradient, T& buffer,
                                              const SgdScalars<T>& s, bool decay, bool nesterov) {
  const T g = with_decay(gradient, value, s.weight_decay, decay);
  const T b = s.momentum * buffer + s.gain * g;
  buffer = b;
  value += s.minus_lr * (nesterov ? g + s.momentum * b : b);
}

template <class T>
struct AdamScalars {
  T shrink, weight_decay, mean_weight, mean_keep, beta2, variance_weight, root_correction, eps,
      minus_step_size;

  /// `step` counts from 1.
  static LOCKSTEP_HOST_DEVICE AdamScalars of(const AdamConfig& c, std::int64_t step) {
    using std::pow;
    using std::sqrt;
    const double t = static_cast<double>(step);
    return {static_cast<T>(c.decoupled ? 1 - c.lr * c.weight_decay : 1),
            static_cast<T>(c.weight_decay),
            static_cast<T>(1 - c.beta1),
            static_cast<T>(1 - (1 - c.beta1)),
            static_cast<T>(c.beta2),
            static_cast<T>(1 - c.beta2),
            static_cast<T>(sqrt(1 - pow(c.beta2, t))),
            static_cast<T>(c.eps),
            static_cast<T>(-c.lr / (1 - pow(c.beta1, t)))};
  }
};

/// PyTorch's lerp(a, b, w) is a + w (b - a) for w < 1/2, else b - (b - a) (1 - w): `from_end`.
LOCKSTEP_HOST_DEVICE inline bool adam_lerps_from_end(const AdamConfig& c) {
  return 1 - c.beta1 >= 0.5;
}
/// Whether weight decay goes through the gradient.
LOCKSTEP_HOST_DEVICE inline bool adam_decays_gradient(const AdamConfig& c) {
  return c.weight_decay != 0 && !c.decoupled;
}

template <class T>
LOCKSTEP_HOST_DEVICE inline void adam(T& value, T gradient, T& mean, T& variance,
                                      const AdamScalars<T>& s, bool decay, bool from_end) {
  using std::sqrt;
  const T g = with_decay(gradient, value, s.weight_decay, decay);
  const T difference = g - mean;
  const T m = from_end ? g - difference * s.mean_keep : mean + s.mean_weight * difference;
  const T v = variance * s.beta2 + s.variance_weight * g * g;
  mean = m;
  variance = v;
  const T denominator = sqrt(v) / s.root_correction + s.eps;
  value = value * s.shrink + s.minus_step_size * m / denominator;
}

}  // namespace lockstep::kernels
