#pragma once
/// The formulas of optimizer.h for one element: one text for the processor's loops and for the
/// threads of a GPU. The flags are arguments, so that a loop can make them constants. Compiled
/// without contraction into fused multiply-adds on both sides (kernels/CMakeLists.txt): the bits of
/// an element do not depend on the loop in which it is computed.
///
/// A formula has the scalars of one step (`of`, computed in f64 as Python does, then rounded), the
/// flags that it knows, and the number of tensors that it keeps whatever the flags. It gets the
/// elements of up to three tensors that are kept, in the order of visit_kept (optimizer.h).

#include <bit>
#include <cmath>
#include <cstdint>

#include "lockstep/kernels/formulas/functors.h"
#include "lockstep/kernels/optimizer.h"

namespace lockstep::kernels {

/// What a step does beside the least. With each of the first three it keeps one more tensor.
enum StepFlag : unsigned {
  with_momentum = 1,
  centered = 2,
  amsgrad = 4,
  decays = 8,  ///< weight decay goes through the gradient
  maximizes = 16,
  nesterov = 32,
  first_step = 64,  ///< the momentum holds nothing yet
  from_end = 128    ///< which of PyTorch's two ways lerp() takes
};
inline constexpr unsigned keeping_flags = with_momentum | centered | amsgrad;

LOCKSTEP_HOST_DEVICE constexpr unsigned when(bool on, StepFlag flag) { return on ? flag : 0u; }

/// How many tensors a step keeps.
template <class Formula>
constexpr int kept_with(unsigned flags) {
  return Formula::always_kept + std::popcount(flags & Formula::flags & keeping_flags);
}

/// The direction in which a step reduces the loss, or if it maximizes increases it.
template <class T>
LOCKSTEP_HOST_DEVICE inline T descent(T gradient, T value, T weight_decay, unsigned flags) {
  const T g = flags & maximizes ? -gradient : gradient;
  return flags & decays ? g + weight_decay * value : g;
}

/// PyTorch's lerp(a, b, w) is a + w (b - a) for w < 1/2, else b - (b - a) (1 - w): `from_end`.
/// `weight` is w and `keep` is 1 - w.
template <class T>
LOCKSTEP_HOST_DEVICE inline T lerp(T a, T b, T weight, T keep, unsigned flags) {
  const T difference = b - a;
  return flags & from_end ? b - difference * keep : a + weight * difference;
}

LOCKSTEP_HOST_DEVICE inline unsigned flags_of(const SgdConfig& c) {
  return when(c.momentum != 0, with_momentum) | when(c.weight_decay != 0, decays) |
         when(c.nesterov, nesterov) | when(c.maximize, maximizes);
}

template <class T>
struct Sgd {
  static constexpr unsigned flags = with_momentum | first_step | decays | nesterov | maximizes;
  static constexpr int always_kept = 0;
  T minus_lr, weight_decay, momentum, gain;

  static LOCKSTEP_HOST_DEVICE Sgd of(const SgdConfig& c) {
    return {static_cast<T>(-c.lr), static_cast<T>(c.weight_decay), static_cast<T>(c.momentum),
            static_cast<T>(1 - c.dampening)};
  }

  LOCKSTEP_HOST_DEVICE void operator()(T& value, T gradient, T& buffer, T&, T&, unsigned on) const {
    T g = descent(gradient, value, weight_decay, on);
    if (on & with_momentum) {
      buffer = on & first_step ? g : momentum * buffer + gain * g;
      g = on & nesterov ? g + momentum * buffer : buffer;
    }
    value += minus_lr * g;
  }
};

/// base^n, n >= 0, by repeated squaring: two products for each bit of n, where a GPU's pow takes a
/// hundred instructions, in every block. Products have the same bits everywhere; each C library's
/// pow has its own. What is left of 1 - base^n is as exact: there, cancellation decides. (For 0.9,
/// 0.99 and 0.999 the relative error stays below 3e-16, 3e-15 and 2e-14.)
LOCKSTEP_HOST_DEVICE inline double integer_power(double base, std::int64_t n) {
  double result = 1;
  for (; n > 0; n /= 2) {
    if (n % 2 == 1) result *= base;
    base *= base;
  }
  return result;
}

LOCKSTEP_HOST_DEVICE inline unsigned flags_of(const AdamConfig& c) {
  return when(c.amsgrad, amsgrad) | when(c.weight_decay != 0 && !c.decoupled, decays) |
         when(1 - c.beta1 >= 0.5, from_end) | when(c.maximize, maximizes);
}

template <class T>
struct Adam {
  static constexpr unsigned flags = amsgrad | decays | from_end | maximizes;
  static constexpr int always_kept = 2;
  T shrink, weight_decay, mean_weight, mean_keep, beta2, variance_weight, root_correction, eps,
      minus_step_size;

  /// `step` counts from 1.
  static LOCKSTEP_HOST_DEVICE Adam of(const AdamConfig& c, std::int64_t step) {
    using std::sqrt;
    return {static_cast<T>(c.decoupled ? 1 - c.lr * c.weight_decay : 1),
            static_cast<T>(c.weight_decay),
            static_cast<T>(1 - c.beta1),
            static_cast<T>(1 - (1 - c.beta1)),
            static_cast<T>(c.beta2),
            static_cast<T>(1 - c.beta2),
            static_cast<T>(sqrt(1 - integer_power(c.beta2, step))),
            static_cast<T>(c.eps),
            static_cast<T>(-c.lr / (1 - integer_power(c.beta1, step)))};
  }

  LOCKSTEP_HOST_DEVICE void operator()(T& value, T gradient, T& mean, T& variance, T& largest,
                                       unsigned on) const {
    using std::sqrt;
    const T g = descent(gradient, value, weight_decay, on);
    mean = lerp(mean, g, mean_weight, mean_keep, on);
    variance = variance * beta2 + variance_weight * g * g;
    T v = variance;
    if (on & amsgrad)
      largest = v = v <= largest || largest != largest ? largest : v;  // NOLINT: or is NaN
    const T denominator = sqrt(v) / root_correction + eps;
    value = value * shrink + minus_step_size * mean / denominator;
  }
};

LOCKSTEP_HOST_DEVICE inline unsigned flags_of(const RmspropConfig& c) {
  return when(c.centered, centered) | when(c.momentum != 0, with_momentum) |
         when(c.weight_decay != 0, decays) | when(1 - c.alpha >= 0.5, from_end) |
         when(c.maximize, maximizes);
}

template <class T>
struct Rmsprop {
  static constexpr unsigned flags = centered | with_momentum | decays | from_end | maximizes;
  static constexpr int always_kept = 1;
  T minus_lr, weight_decay, alpha, weight, keep, eps, momentum;

  static LOCKSTEP_HOST_DEVICE Rmsprop of(const RmspropConfig& c) {
    return {static_cast<T>(-c.lr),       static_cast<T>(c.weight_decay),    static_cast<T>(c.alpha),
            static_cast<T>(1 - c.alpha), static_cast<T>(1 - (1 - c.alpha)), static_cast<T>(c.eps),
            static_cast<T>(c.momentum)};
  }

  /// The momentum comes behind the mean, if there is one.
  LOCKSTEP_HOST_DEVICE void operator()(T& value, T gradient, T& square, T& second, T& third,
                                       unsigned on) const {
    using std::sqrt;
    const T g = descent(gradient, value, weight_decay, on);
    square = square * alpha + weight * g * g;
    T v = square;
    if (on & centered) {
      second = lerp(second, g, weight, keep, on);
      v -= second * second;
    }
    const T denominator = sqrt(v) + eps;
    if (on & with_momentum) {
      T& buffer = on & centered ? third : second;
      buffer = buffer * momentum + g / denominator;
      value += minus_lr * buffer;
    } else {
      value += minus_lr * g / denominator;
    }
  }
};

LOCKSTEP_HOST_DEVICE inline unsigned flags_of(const LionConfig& c) {
  return when(c.maximize, maximizes);
}

template <class T>
struct Lion {
  static constexpr unsigned flags = maximizes;
  static constexpr int always_kept = 1;
  T shrink, minus_lr, beta1, weight1, beta2, weight2;

  static LOCKSTEP_HOST_DEVICE Lion of(const LionConfig& c) {
    return {static_cast<T>(1 - c.lr * c.weight_decay),
            static_cast<T>(-c.lr),
            static_cast<T>(c.beta1),
            static_cast<T>(1 - c.beta1),
            static_cast<T>(c.beta2),
            static_cast<T>(1 - c.beta2)};
  }

  LOCKSTEP_HOST_DEVICE void operator()(T& value, T gradient, T& momentum, T&, T&,
                                       unsigned on) const {
    const T g = on & maximizes ? -gradient : gradient;
    const T c = momentum * beta1 + g * weight1;
    momentum = momentum * beta2 + g * weight2;
    const T sign = c > 0 ? T(1) : c < 0 ? T(-1) : c;
    value = value * shrink + minus_lr * sign;
  }
};

}  // namespace lockstep::kernels
