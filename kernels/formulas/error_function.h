#pragma once
/// The error function and GELU, made as elementary.h is.

#include "lockstep/kernels/formulas/elementary.h"

namespace lockstep::kernels::elementary {

/// The integral of 2 / sqrt(pi) e^-t^2 from 0 to x: x P(x^2), in f64, so that rounding it to f32
/// leaves it monotone and within [-1, 1].
LOCKSTEP_HOST_DEVICE inline float erf(float x) {
  const float size = magnitude(x);
  const double within = choose(size > 4, 4.0f, size), w = within * within * 0.125 - 1;
  const double slope = long_polynomial(
      w, w * w, -2.7617855934478815e-05, 9.354428935181979e-05, -0.00011433253697337629,
      0.00017517009290225297, -0.0005916672709483627, 0.001407098937863718, -0.002616265227051202,
      0.004777376894851526, -0.008576454423452383, 0.014380039259305793, -0.02248625031262438,
      0.033053469224236826, -0.04576210399438114, 0.05988783211107595, -0.07472823796425919,
      0.09020893698881097, -0.10771042220981353, 0.13167511811550664, -0.17657623361693495,
      0.3535309956400624);
  return with_sign_of(x, static_cast<float>(within * slope));
}
LOCKSTEP_HOST_DEVICE inline double erf(double x) { return std::erf(x); }

inline constexpr double density_at_0 = 0.39894228040143267794;  // 1 / sqrt(2 pi)

/// GELU is x P(X < x) for a normal X. Beyond `gelu_tail` that is -|x| P(X > |x|), plus x if x > 0.
inline constexpr float gelu_tail = 0.94;

/// a P(X > a) = y e^(-a^2 / 2) for a from gelu_tail to 15, where it is 0 in f32. y is between 0.25
/// and 0.4, and a polynomial in a / (a + 3) (after M. Shepherd and J. Laframboise, "Chebyshev
/// approximation of (1 + 2x) exp(x^2) erfc(x)", Mathematics of Computation 36, 1981). Its constant
/// is the larger part of it, so that its rounding can be made good.
struct NormalTail {
  float y, rest;                   ///< the larger and the smaller part
  Exponential<float> exponential;  ///< e^(-a^2 / 2), of the exact square

  LOCKSTEP_HOST_DEVICE explicit NormalTail(float a) {
    constexpr double constant = 0.36454184696555914;
    constexpr float large = constant, small = constant - static_cast<double>(large);
    const float w = 0.5f * (a - 3) / (a + 3);  // a / (a + 3) - 1/2
    const float other =
        w * long_polynomial(w, w * w, -0.14006114f, -0.004863827f, 0.25379622f, -0.05563524f,
                            -0.46173063f, 0.7310143f, -0.55862945f, 0.21975173f);
    y = large + other;
    rest = (other - (y - large)) + small;
    const float half = -0.5f * a, square = half * a;
    exponential = elementary::exponential(square, lost_in_product(half, a, square));
  }
};

LOCKSTEP_HOST_DEVICE inline float gelu(float x) {
  const float size = magnitude(x), z = x * x;
  const float above_half =
      polynomial(z, 9.446198e-05f, -0.001169135f, 0.009966524f, -0.066489264f, 0.39894223f);
  const float near = x * multiply_add(x, above_half, 0.5f);
  const NormalTail tail(at_most(15.0f, size));
  const auto& e = tail.exponential;
  const float beyond = e.scale(tail.y + multiply_add(tail.y, e.fraction, tail.rest));
  const float far = choose(x < 0, -0.0f, x) - beyond;
  return choose(size < gelu_tail, near, far);
}
LOCKSTEP_HOST_DEVICE inline double gelu(double x) {
  return x < -40 ? -0.0 : x * (0.5 * std::erfc(x * -0.70710678118654752440));
}

/// Its derivative, P(X < x) + x times the density at x.
LOCKSTEP_HOST_DEVICE inline float gelu_slope(float x) {
  const float size = magnitude(x), z = x * x, a = choose(size > 15, 15.0f, size);
  const float above_half =
      polynomial(z, 0.0009072245f, -0.009285708f, 0.05975934f, -0.26594853f, 0.797884f);
  const NormalTail tail(a);
  const float y = tail.y / a - a * static_cast<float>(density_at_0);
  const float beyond = tail.exponential.scale(multiply_add(y, tail.exponential.fraction, y));
  const float far = choose(x < 0, beyond, 1 - beyond);
  return choose(size < gelu_tail, multiply_add(x, above_half, 0.5f), far);
}
LOCKSTEP_HOST_DEVICE inline double gelu_slope(double x) {
  const double within = clamped(x, -40.0, 40.0);
  return 0.5 * std::erfc(within * -0.70710678118654752440) +
         within * density_at_0 * exp(-0.5 * within * within);
}

/// GELU's approximation by tanh (D. Hendrycks and K. Gimpel, "Gaussian error linear units", 2016,
/// section 2): x / 2 (1 + tanh u) = x / (1 + e^-w) with w = 2 u = x (k + l x^2). Where w is large,
/// its error would be one of the result: it is computed with twice as many bits, where there are
/// fused multiply-adds.
inline constexpr double gelu_k = 4 * density_at_0, gelu_l = 0.044715 * gelu_k;
template <class T>
LOCKSTEP_HOST_DEVICE inline T gelu_tanh(T x) {
  const T within = clamped<T>(x, is_single<T> ? -11 : -24, is_single<T> ? 11 : 24);
  const T k = static_cast<T>(gelu_k), l = static_cast<T>(gelu_l);
  const T square = within * within, square_low = lost_in_product(within, within, square);
  const T cubic = l * square;
  const T cubic_low = lost_in_product(l, square, cubic) + l * square_low +
                      static_cast<T>(gelu_l - static_cast<double>(l)) * square;
  const T sum = k + cubic, back = sum - k;
  const T sum_low = (k - (sum - back)) + (cubic - back) +
                    (cubic_low + static_cast<T>(gelu_k - static_cast<double>(k)));
  const T w = within * sum, w_low = lost_in_product(within, sum, w) + within * sum_low;
  return choose(x > within, x, sigmoid_times(within, w, w_low));
}
template <class T>
LOCKSTEP_HOST_DEVICE inline T gelu_tanh_slope(T x) {
  const T within = clamped<T>(x, -24, 24), z = within * within;
  const T k = static_cast<T>(gelu_k), l = static_cast<T>(gelu_l);
  const T s = sigmoid(within * (k + l * z));
  return s + within * (s * (1 - s)) * (k + 3 * l * z);
}

}  // namespace lockstep::kernels::elementary
