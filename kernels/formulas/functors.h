#pragma once
/// The scalar formulas of elementwise.h. They are templates, so that one text serves a number, a
/// vector of 16 numbers, and, compiled by nvcc, a thread of a GPU.

#include <cmath>
#include <limits>
#include <string_view>
#include <type_traits>

#include "lockstep/core/compiler.h"
#include "lockstep/kernels/elementwise.h"

namespace lockstep::kernels {

/// The type of a number of T, which may be a vector of numbers.
template <class T, class = void>
struct NumberOf {
  using type = T;
};
template <class T>
struct NumberOf<T, std::void_t<typename T::Scalar>> {
  using type = typename T::Scalar;
};
template <class T>
using Number = typename NumberOf<T>::type;

/// A function of one operand: what makes y of x, and dx of dy and what was saved, the output y or
/// the input x. Those over packs are worth (and need) vectors of a fixed size, and their gradients
/// too if they are made of x; the others are left to the compiler.
#define LOCKSTEP_UNARY(Type, text, saves_output_, packs_, saved, y_of_x, dx_of_dy) \
  struct Type {                                                                    \
    static constexpr std::string_view name = text;                                 \
    static constexpr bool saves_output = saves_output_, over_packs = packs_;       \
    template <class T>                                                             \
    static LOCKSTEP_HOST_DEVICE T forward(const T& x) {                            \
      using namespace std; /* NOLINT: or Eigen's, by their arguments */            \
      return y_of_x;                                                               \
    }                                                                              \
    template <class T>                                                             \
    static LOCKSTEP_HOST_DEVICE T backward([[maybe_unused]] const T& dy,           \
                                           [[maybe_unused]] const T& saved) {      \
      using namespace std; /* NOLINT */                                            \
      return dx_of_dy;                                                             \
    }                                                                              \
  };
#define LOCKSTEP_OF_OUTPUT(Type, text, y_of_x, dx) \
  LOCKSTEP_UNARY(Type, text, true, false, y, y_of_x, dx)
#define LOCKSTEP_OF_INPUT(Type, text, y_of_x, dx) \
  LOCKSTEP_UNARY(Type, text, false, false, x, y_of_x, dx)
#define LOCKSTEP_PACKS_OF_OUTPUT(Type, text, y_of_x, dx) \
  LOCKSTEP_UNARY(Type, text, true, true, y, y_of_x, dx)
#define LOCKSTEP_PACKS_OF_INPUT(Type, text, y_of_x, dx) \
  LOCKSTEP_UNARY(Type, text, false, true, x, y_of_x, dx)

namespace constants {
inline constexpr double sqrt_half = 0.70710678118654752440;  // 1 / sqrt(2)
inline constexpr double two_over_sqrt_pi = 1.12837916709551257390;
inline constexpr double density_at_0 = 0.39894228040143267794;  // 1 / sqrt(2 pi)
}  // namespace constants

/// GELU's approximation by tanh (Hendrycks and Gimpel, "Gaussian error linear units", 2016,
/// section 2): y = x / 2 (1 + tanh u), u = sqrt(2 / pi) (x + 0.044715 x^3).
template <class T>
LOCKSTEP_HOST_DEVICE T gelu_argument(const T& x) {
  using N = Number<T>;
  return N(2 * constants::density_at_0) * (x + N(0.044715) * x * x * x);
}
template <class T>
LOCKSTEP_HOST_DEVICE T gelu_tanh_slope(const T& x) {
  using N = Number<T>;
  using std::tanh;
  const T t = tanh(gelu_argument(x));
  const T du = N(2 * constants::density_at_0) * (1 + N(3 * 0.044715) * x * x);
  return N(0.5) * (1 + t) + N(0.5) * x * (1 - t * t) * du;
}
/// The normal distribution's P(X < x).
template <class T>
LOCKSTEP_HOST_DEVICE T normal_below(const T& x) {
  using std::erf;
  return Number<T>(0.5) * (1 + erf(x * Number<T>(constants::sqrt_half)));
}
/// exp. Eigen's of vectors ends before it reaches 0 and infinity.
template <class T>
LOCKSTEP_HOST_DEVICE T e_to(const T& x) {
  using std::exp;
  if constexpr (std::is_arithmetic_v<T>) {
    return exp(x);
  } else {
    constexpr bool single = sizeof(Number<T>) == 4;
    const T y = (x < Number<T>(single ? -104 : -746)).select(Number<T>(0), exp(x));
    return (x > Number<T>(single ? 88.73f : 709.79))
        .select(std::numeric_limits<Number<T>>::infinity(), y);
  }
}
template <class T>
LOCKSTEP_HOST_DEVICE T logistic(const T& x) {
  return 1 / (1 + e_to(T(-x)));
}
template <class T>
LOCKSTEP_HOST_DEVICE T magnitude(const T& x) {
  if constexpr (std::is_arithmetic_v<T>)
    return fabs(x);
  else
    return x.abs();
}

/// max(x, 0); NaN may become 0.
template <class T>
LOCKSTEP_HOST_DEVICE T positive_part(const T& x) {
  if constexpr (std::is_arithmetic_v<T>)
    return x > 0 ? x : T(0);
  else
    return x.max(Number<T>(0));
}

LOCKSTEP_OF_INPUT(Neg, "neg", -x, -dy)
LOCKSTEP_PACKS_OF_OUTPUT(Exp, "exp", exp(x), dy* y)
LOCKSTEP_PACKS_OF_OUTPUT(Expm1, "expm1", expm1(x), dy*(y + 1))
LOCKSTEP_PACKS_OF_INPUT(Log, "log", log(x), dy / x)
LOCKSTEP_PACKS_OF_INPUT(Log1p, "log1p", log1p(x), dy / (1 + x))
LOCKSTEP_OF_OUTPUT(Sqrt, "sqrt", sqrt(x), dy / (2 * y))
LOCKSTEP_OF_OUTPUT(Rsqrt, "rsqrt", 1 / sqrt(x), T(-0.5) * dy * y * y * y)
LOCKSTEP_OF_OUTPUT(Reciprocal, "reciprocal", 1 / x, -dy* y* y)
LOCKSTEP_OF_INPUT(Square, "square", x* x, dy * 2 * x)
LOCKSTEP_OF_INPUT(Abs, "abs", fabs(x), x == 0 ? T(0) : (x < 0 ? -dy : dy))
LOCKSTEP_OF_INPUT(Sign, "sign", x == 0 ? T(0) : (x < 0 ? T(-1) : (x > 0 ? T(1) : x)), T(0))
LOCKSTEP_OF_INPUT(Floor, "floor", floor(x), T(0))
LOCKSTEP_OF_INPUT(Round, "round", rint(x), T(0))  // half goes to even
LOCKSTEP_PACKS_OF_INPUT(Sin, "sin", sin(x), dy* cos(x))
LOCKSTEP_PACKS_OF_INPUT(Cos, "cos", cos(x), -dy* sin(x))
LOCKSTEP_PACKS_OF_INPUT(Erf, "erf", erf(x),
                        dy* Number<T>(constants::two_over_sqrt_pi) * e_to(T(-x * x)))
// The comparisons are such that NaN passes.
LOCKSTEP_OF_OUTPUT(Relu, "relu", x <= 0 ? T(0) : x, y <= 0 ? T(0) : dy)
LOCKSTEP_OF_INPUT(Elu, "elu", x <= 0 ? expm1(x) : x, x <= 0 ? dy * exp(x) : dy)
LOCKSTEP_PACKS_OF_OUTPUT(Sigmoid, "sigmoid", logistic(x), dy*(1 - y) * y)
LOCKSTEP_PACKS_OF_OUTPUT(Tanh, "tanh", tanh(x), dy*(1 - y * y))
LOCKSTEP_PACKS_OF_INPUT(Gelu, "gelu", x* normal_below(x),
                        dy*(normal_below(x) + x * Number<T>(constants::density_at_0) *
                                                  e_to(T(Number<T>(-0.5) * x * x))))
LOCKSTEP_PACKS_OF_INPUT(GeluTanh, "gelu_tanh", Number<T>(0.5) * x * (1 + tanh(gelu_argument(x))),
                        dy* gelu_tanh_slope(x))
LOCKSTEP_PACKS_OF_INPUT(Silu, "silu", x* logistic(x), dy* logistic(x) * (1 + x * (1 - logistic(x))))
LOCKSTEP_PACKS_OF_INPUT(Softplus, "softplus", positive_part(x) + log1p(e_to(T(-magnitude(x)))),
                        dy* logistic(x))

#undef LOCKSTEP_PACKS_OF_INPUT
#undef LOCKSTEP_PACKS_OF_OUTPUT
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
template <class T>
LOCKSTEP_HOST_DEVICE T power(T a, T b) {
  using std::pow;
  return static_cast<T>(pow(a, b));
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
    case Binary::div: break;
  }
  return f(Div{});
}

}  // namespace lockstep::kernels
