#pragma once
/// What the functions of elementwise.h should be, in f64 and in long double, and what holds for
/// each of them.

#include <cmath>
#include <limits>
#include <vector>

#include "lockstep/kernels/elementwise.h"

namespace lockstep::test {

namespace truth {

// The parts of a number that cancel are taken apart: these formulas are exact to a few units of T.
template <class T>
T logistic(T x) {
  return x > 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
}
template <class T>
T times(T x, T factor) {  // -infinity times nothing is nothing
  return factor == 0 ? -T(0) : x * factor;
}
template <class T>
T normal_below(T x) {
  return std::erfc(-x * std::sqrt(T(0.5L))) / 2;
}
template <class T>
T gelu_argument(T x) {
  return std::sqrt(T(2) / std::acos(T(-1))) * 2 * (x + T(0.044715L) * x * x * x);
}
template <class T>
T softplus(T x) {
  return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
}
template <class T>
T sign(T x) {
  return x > 0 ? T(1) : x < 0 ? T(-1) : x == 0 ? T(0) : x;
}

}  // namespace truth

struct Function {
  kernels::Unary op;
  double (*truth)(double);
  long double (*wide_truth)(long double);
  double ulp;        ///< how many units in the last place a result may be off
  double low, high;  ///< its range
  int direction;     ///< 1: rises everywhere; -1: falls; 0: neither
  bool keeps_sign;   ///< of its operand
};

inline const std::vector<Function>& functions() {
  using kernels::Unary;
  constexpr double all = std::numeric_limits<double>::infinity();
#define LOCKSTEP_TRUTH(op, expression, ...)                                  \
  Function {                                                                 \
    Unary::op, [](double x) -> double { return expression; },                \
        [](long double x) -> long double { return expression; }, __VA_ARGS__ \
  }
  static const std::vector<Function> table = {
      LOCKSTEP_TRUTH(neg, -x, 0, -all, all, -1, false),
      LOCKSTEP_TRUTH(exp, std::exp(x), 1, 0, all, 1, false),
      LOCKSTEP_TRUTH(expm1, std::expm1(x), 1.5, -1, all, 1, true),
      LOCKSTEP_TRUTH(log, std::log(x), 1, -all, all, 1, false),
      LOCKSTEP_TRUTH(log1p, std::log1p(x), 1.5, -all, all, 1, true),
      LOCKSTEP_TRUTH(sqrt, std::sqrt(x), 0.5, -0.0, all, 1, false),
      LOCKSTEP_TRUTH(rsqrt, 1 / std::sqrt(x), 1.5, -all, all, 0, false),
      LOCKSTEP_TRUTH(reciprocal, 1 / x, 0.5, -all, all, 0, true),
      LOCKSTEP_TRUTH(square, x * x, 0.5, 0, all, 0, false),
      LOCKSTEP_TRUTH(abs, std::fabs(x), 0, 0, all, 0, false),
      LOCKSTEP_TRUTH(sign, truth::sign(x), 0, -1, 1, 1, true),
      LOCKSTEP_TRUTH(floor, std::floor(x), 0, -all, all, 1, false),
      LOCKSTEP_TRUTH(round, std::rint(x), 0, -all, all, 1, true),
      LOCKSTEP_TRUTH(sin, std::sin(x), 1, -1, 1, 0, false),
      LOCKSTEP_TRUTH(cos, std::cos(x), 1, -1, 1, 0, false),
      LOCKSTEP_TRUTH(erf, std::erf(x), 1, -1, 1, 1, true),
      LOCKSTEP_TRUTH(relu, x <= 0 ? 0 : x, 0, 0, all, 1, false),
      LOCKSTEP_TRUTH(elu, x > 0 ? x : std::expm1(x), 1.5, -1, all, 1, true),
      LOCKSTEP_TRUTH(sigmoid, truth::logistic(x), 2, 0, 1, 1, false),
      LOCKSTEP_TRUTH(tanh, std::tanh(x), 1.5, -1, 1, 1, true),
      LOCKSTEP_TRUTH(gelu, truth::times(x, truth::normal_below(x)), 2.5, -0.17, all, 0, true),
      LOCKSTEP_TRUTH(gelu_tanh, truth::times(x, truth::logistic(truth::gelu_argument(x))), 2.5,
                     -0.171, all, 0, true),
      LOCKSTEP_TRUTH(silu, truth::times(x, truth::logistic(x)), 2.5, -0.279, all, 0, true),
      LOCKSTEP_TRUTH(softplus, truth::softplus(x), 2, 0, all, 1, false),
  };
#undef LOCKSTEP_TRUTH
  return table;
}

}  // namespace lockstep::test
