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

/// The direction in which a step reduces the loss, or with `maximize` increases it.
template <class T>
LOCKSTEP_HOST_DEVICE inline T descent(T gradient, T value, T weight_decay, bool decay,
                                      bool maximize) {
  const T g = maximize ? -gradient : gradient;
  return decay ? g + weight_decay * value : g;
}

/// PyTorch's lerp(a, b, w) is a + w (b - a) for w < 1/2, else b - (b - a) (1 - w): `from_end`.
/// `weight` is w and `keep` is 1 - w.
template <class T>
LOCKSTEP_HOST_DEVICE inline T lerp(T a, T b, T weight, T keep, bool from_end) {
  const T difference = b - a;
  return from_end ? b - difference * keep : a + weight * difference;
}

struct SgdFlags {
  bool decay, nesterov, maximize;
  static LOCKSTEP_HOST_DEVICE SgdFlags of(const SgdConfig& c) {
    return {c.weight_decay != 0, c.nesterov, c.maximize};
  }
};

template <class T>
LOCKSTEP_HOST_DEVICE inline void sgd_plain(T& value, T gradient, const SgdScalars<T>& s,
                                           SgdFlags flags) {
  value += s.minus_lr * descent(gradient, value, s.weight_decay, flags.decay, flags.maximize);
}

template <class T>
LOCKSTEP_HOST_DEVICE inline void sgd_momentum(T& value, T gradient, T& buffer,
                                              const SgdScalars<T>& s, SgdFlags flags) {
  const T g = descent(gradient, value, s.weight_decay, flags.decay, flags.maximize);
  const T b = s.momentum * buffer + s.gain * g;
  buffer = b;
  value += s.minus_lr * (flags.nesterov ? g + s.momentum * b : b);
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

struct AdamFlags {
  bool decay;  ///< weight decay goes through the gradient
  bool from_end, amsgrad, maximize;
  static LOCKSTEP_HOST_DEVICE AdamFlags of(const AdamConfig& c) {
    return {c.weight_decay != 0 && !c.decoupled, 1 - c.beta1 >= 0.5, c.amsgrad, c.maximize};
  }
};

/// `largest` is touched by amsgrad alone.
template <class T>
LOCKSTEP_HOST_DEVICE inline void adam(T& value, T gradient, T& mean, T& variance, T& largest,
                                      const AdamScalars<T>& s, AdamFlags flags) {
  using std::sqrt;
  const T g = descent(gradient, value, s.weight_decay, flags.decay, flags.maximize);
  const T m = lerp(mean, g, s.mean_weight, s.mean_keep, flags.from_end);
  T v = variance * s.beta2 + s.variance_weight * g * g;
  mean = m;
  variance = v;
  if (flags.amsgrad) largest = v = v <= largest || largest != largest ? largest : v;
  const T denominator = sqrt(v) / s.root_correction + s.eps;
  value = value * s.shrink + s.minus_step_size * m / denominator;
}

template <class T>
struct RmspropScalars {
  T minus_lr, weight_decay, alpha, weight, keep, eps, momentum;

  static LOCKSTEP_HOST_DEVICE RmspropScalars of(const RmspropConfig& c) {
    return {static_cast<T>(-c.lr),       static_cast<T>(c.weight_decay),    static_cast<T>(c.alpha),
            static_cast<T>(1 - c.alpha), static_cast<T>(1 - (1 - c.alpha)), static_cast<T>(c.eps),
            static_cast<T>(c.momentum)};
  }
};

struct RmspropFlags {
  bool decay, from_end, centered, momentum, maximize;
  static LOCKSTEP_HOST_DEVICE RmspropFlags of(const RmspropConfig& c) {
    return {c.weight_decay != 0, 1 - c.alpha >= 0.5, c.centered, c.momentum != 0, c.maximize};
  }
};

/// `mean` is touched only if centered, `buffer` only with momentum.
template <class T>
LOCKSTEP_HOST_DEVICE inline void rmsprop(T& value, T gradient, T& square, T& mean, T& buffer,
                                         const RmspropScalars<T>& s, RmspropFlags flags) {
  using std::sqrt;
  const T g = descent(gradient, value, s.weight_decay, flags.decay, flags.maximize);
  T v = square * s.alpha + s.weight * g * g;
  square = v;
  if (flags.centered) {
    const T m = lerp(mean, g, s.weight, s.keep, flags.from_end);
    mean = m;
    v -= m * m;
  }
  const T denominator = sqrt(v) + s.eps;
  if (flags.momentum) {
    const T b = buffer * s.momentum + g / denominator;
    buffer = b;
    value += s.minus_lr * b;
  } else {
    value += s.minus_lr * g / denominator;
  }
}

template <class T>
struct LionScalars {
  T shrink, minus_lr, beta1, weight1, beta2, weight2;

  static LOCKSTEP_HOST_DEVICE LionScalars of(const LionConfig& c) {
    return {static_cast<T>(1 - c.lr * c.weight_decay),
            static_cast<T>(-c.lr),
            static_cast<T>(c.beta1),
            static_cast<T>(1 - c.beta1),
            static_cast<T>(c.beta2),
            static_cast<T>(1 - c.beta2)};
  }
};

template <class T>
LOCKSTEP_HOST_DEVICE inline void lion(T& value, T gradient, T& momentum, const LionScalars<T>& s,
                                      bool maximize) {
  const T g = maximize ? -gradient : gradient;
  const T c = momentum * s.beta1 + g * s.weight1;
  momentum = momentum * s.beta2 + g * s.weight2;
  const T sign = c > 0 ? T(1) : c < 0 ? T(-1) : c;
  value = value * s.shrink + s.minus_lr * sign;
}

}  // namespace lockstep::kernels
