#pragma once
/// The scalar formulas of elementwise.h. One text serves the processor's loops, which the compiler
/// vectorizes, and, compiled by nvcc, a thread of a GPU.

#include <cmath>
#include <string_view>
#include <type_traits>

#include "lockstep/core/compiler.h"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/formulas/elementary.h"
#include "lockstep/kernels/formulas/error_function.h"

namespace lockstep::kernels {

/// A function of one operand: what makes y of x, and dx of dy and what was saved, the output y or
/// the input x.
#define LOCKSTEP_UNARY(Type, text, saves_output_, saved, y_of_x, dx_of_dy)                    \
  struct Type {                                                                               \
    static constexpr std::string_view name = text;                                            \
    static constexpr bool saves_output = saves_output_, of_angles = false;                    \
    template <class T>                                                                        \
    static LOCKSTEP_HOST_DEVICE T forward(T x) {                                              \
      return y_of_x;                                                                          \
    }                                                                                         \
    template <class T>                                                                        \
    static LOCKSTEP_HOST_DEVICE T backward([[maybe_unused]] T dy, [[maybe_unused]] T saved) { \
      return dx_of_dy;                                                                        \
    }                                                                                         \
  };
#define LOCKSTEP_OF_OUTPUT(Type, text, y_of_x, dx) LOCKSTEP_UNARY(Type, text, true, y, y_of_x, dx)
#define LOCKSTEP_OF_INPUT(Type, text, y_of_x, dx) LOCKSTEP_UNARY(Type, text, false, x, y_of_x, dx)

/// sin(x + quarters pi / 2), and its derivative. A loop may promise that x is small: at most
/// elementary::largest_angle. The results are the same.
template <unsigned quarters>
struct SineOf {
  static constexpr bool saves_output = false, of_angles = true;
  template <class T, class Small = std::false_type>
  static LOCKSTEP_HOST_DEVICE T forward(T x, Small = {}) {
    return Small::value ? elementary::sine_of_small(x, quarters) : elementary::sine(x, quarters);
  }
  template <class T, class Small = std::false_type>
  static LOCKSTEP_HOST_DEVICE T backward(T dy, T x, Small small = {}) {
    return dy * SineOf<quarters + 1>::forward(x, small);
  }
};
struct Sin : SineOf<0> {
  static constexpr std::string_view name = "sin";
};
struct Cos : SineOf<1> {
  static constexpr std::string_view name = "cos";
};

namespace constants {
inline constexpr double two_over_sqrt_pi = 1.12837916709551257390;
}  // namespace constants

LOCKSTEP_OF_INPUT(Neg, "neg", -x, -dy)
LOCKSTEP_OF_OUTPUT(Exp, "exp", elementary::exp(x), dy* y)
LOCKSTEP_OF_OUTPUT(Expm1, "expm1", elementary::expm1(x), dy*(y + 1))
LOCKSTEP_OF_INPUT(Log, "log", elementary::log(x), dy / x)
LOCKSTEP_OF_INPUT(Log1p, "log1p", elementary::log1p(x), dy / (1 + x))
LOCKSTEP_OF_OUTPUT(Sqrt, "sqrt", std::sqrt(x), dy / (2 * y))
LOCKSTEP_OF_OUTPUT(Rsqrt, "rsqrt", 1 / std::sqrt(x), T(-0.5) * dy * y * y * y)
LOCKSTEP_OF_OUTPUT(Reciprocal, "reciprocal", 1 / x, -dy* y* y)
LOCKSTEP_OF_INPUT(Square, "square", x* x, dy * 2 * x)
LOCKSTEP_OF_INPUT(Abs, "abs", std::fabs(x), x == 0 ? T(0) : (x < 0 ? -dy : (x > 0 ? dy : x)))
LOCKSTEP_OF_INPUT(Sign, "sign", x == 0 ? T(0) : (x < 0 ? T(-1) : (x > 0 ? T(1) : x)), T(0))
LOCKSTEP_OF_INPUT(Floor, "floor", std::floor(x), T(0))
LOCKSTEP_OF_INPUT(Round, "round", std::rint(x), T(0))  // half goes to even
LOCKSTEP_OF_INPUT(Erf, "erf", elementary::erf(x),
                  dy* T(constants::two_over_sqrt_pi) * elementary::exp(-x * x))
// The comparisons are such that NaN passes.
LOCKSTEP_OF_OUTPUT(Relu, "relu", x <= 0 ? T(0) : x, y <= 0 ? T(0) : dy)
LOCKSTEP_OF_INPUT(Elu, "elu", elementary::choose(x <= 0, elementary::expm1(x), x),
                  elementary::choose(x > 0, dy, dy* elementary::exp(x)))
LOCKSTEP_OF_OUTPUT(Sigmoid, "sigmoid", elementary::sigmoid(x), dy*(1 - y) * y)
LOCKSTEP_OF_OUTPUT(Tanh, "tanh", elementary::tanh(x), dy*(1 - y * y))
LOCKSTEP_OF_INPUT(Gelu, "gelu", elementary::gelu(x), dy* elementary::gelu_slope(x))
LOCKSTEP_OF_INPUT(GeluTanh, "gelu_tanh", elementary::gelu_tanh(x),
                  dy* elementary::gelu_tanh_slope(x))
LOCKSTEP_OF_INPUT(Silu, "silu", elementary::silu(x), dy* elementary::silu_slope(x))
LOCKSTEP_OF_INPUT(Softplus, "softplus", elementary::softplus(x), dy* elementary::sigmoid(x))

#undef LOCKSTEP_OF_INPUT
#undef LOCKSTEP_OF_OUTPUT
#undef LOCKSTEP_UNARY

/// A function of two operands. On integers, results wrap around; quotients drop their fraction, as
/// in C++; what has none (a divisor of 0) is 0, and so is its remainder.
#define LOCKSTEP_BINARY(Type, text, expression)            \
  struct Type {                                            \
    static constexpr std::string_view name = text;         \
    template <class T>                                     \
    LOCKSTEP_HOST_DEVICE auto operator()(T a, T b) const { \
      return expression;                                   \
    }                                                      \
  };

namespace detail {
/// What T is computed in: signed overflow would be undefined.
template <class T>
using Wrapping = std::conditional_t<std::is_integral_v<T>, std::uint64_t, T>;
template <class T>
LOCKSTEP_HOST_DEVICE Wrapping<T> wrapping(T a) {
  return static_cast<Wrapping<T>>(a);
}
template <class T>
LOCKSTEP_HOST_DEVICE T quotient(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    if (std::is_signed_v<T> && b == T(-1)) return static_cast<T>(0 - wrapping(a));  // may wrap
    return b == 0 ? T(0) : static_cast<T>(a / b);
  }
  return a / b;
}
template <class T>
LOCKSTEP_HOST_DEVICE T remainder(T a, T b) {
  if constexpr (std::is_integral_v<T>)
    return b == 0 || (std::is_signed_v<T> && b == T(-1)) ? T(0) : static_cast<T>(a % b);
  else
    return std::fmod(a, b);
}
/// f(power) with a function that raises numbers to this power. Powers that PyTorch makes of
/// multiplications and roots are made so here, and vectorized; -1.5 is in the gradient of -0.5.
template <class T, class F>
LOCKSTEP_HOST_DEVICE auto with_power(T exponent, F f) {
  if constexpr (!std::is_integral_v<T>) {
    if (exponent == 2) return f([](T a) { return a * a; });
    if (exponent == 3) return f([](T a) { return a * a * a; });
    if (exponent == 4) return f([](T a) { return (a * a) * (a * a); });
    if (exponent == 1) return f([](T a) { return a; });
    if (exponent == T(0.5)) return f([](T a) { return std::sqrt(a); });
    if (exponent == T(-0.5)) return f([](T a) { return 1 / std::sqrt(a); });
    if (exponent == -1) return f([](T a) { return 1 / a; });
    if (exponent == T(-1.5)) return f([](T a) { return (1 / a) * (1 / std::sqrt(a)); });
    if (exponent == -2) return f([](T a) { return (1 / a) * (1 / a); });
  }
  return f([exponent](T a) { return static_cast<T>(std::pow(a, exponent)); });
}
template <class T>
LOCKSTEP_HOST_DEVICE T power(T a, T b) {
  return with_power(b, [a](auto raised) { return raised(a); });
}
}  // namespace detail

LOCKSTEP_BINARY(Add, "add", static_cast<T>(detail::wrapping(a) + detail::wrapping(b)))
LOCKSTEP_BINARY(Sub, "sub", static_cast<T>(detail::wrapping(a) - detail::wrapping(b)))
LOCKSTEP_BINARY(Mul, "mul", static_cast<T>(detail::wrapping(a) * detail::wrapping(b)))
LOCKSTEP_BINARY(Div, "div", detail::quotient(a, b))
LOCKSTEP_BINARY(Remainder, "remainder", detail::remainder(a, b))
LOCKSTEP_BINARY(Maximum, "maximum", a != a || a >= b ? a : b)  // NaN wins
LOCKSTEP_BINARY(Minimum, "minimum", a != a || a <= b ? a : b)
LOCKSTEP_BINARY(Pow, "pow", detail::power(a, b))
LOCKSTEP_BINARY(Leaky, "leaky", a > 0 ? a : Mul{}(a, b))
LOCKSTEP_BINARY(LeakySlope, "leaky_slope", a > 0 ? T(1) : b)
LOCKSTEP_BINARY(Equal, "eq", a == b)
LOCKSTEP_BINARY(NotEqual, "ne", a != b)
LOCKSTEP_BINARY(Less, "lt", a < b)
LOCKSTEP_BINARY(LessEqual, "le", a <= b)

#undef LOCKSTEP_BINARY

/// Calls f with the functor behind the enumerator.
template <class F>
decltype(auto) visit(Unary op, F&& f) {
  switch (op) {
#define LOCKSTEP_CASE(name, Formula) \
  case Unary::name: return f(Formula{});
    LOCKSTEP_UNARY_OPERATIONS(LOCKSTEP_CASE)
#undef LOCKSTEP_CASE
  }
  return f(Neg{});  // not reached
}

template <class F>
decltype(auto) visit(Binary op, F&& f) {
  switch (op) {
    case Binary::add: return f(Add{});
    case Binary::sub: return f(Sub{});
    case Binary::mul: return f(Mul{});
    case Binary::remainder: return f(Remainder{});
    case Binary::maximum: return f(Maximum{});
    case Binary::minimum: return f(Minimum{});
    case Binary::pow: return f(Pow{});
    case Binary::leaky: return f(Leaky{});
    case Binary::leaky_slope: return f(LeakySlope{});
    case Binary::div: break;
  }
  return f(Div{});
}

}  // namespace lockstep::kernels
