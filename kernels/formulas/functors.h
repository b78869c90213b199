#pragma once
/// The scalar formulas of elementwise.h. They are templates, so that one text serves a number, a
/// vector of 16 numbers, and, compiled by nvcc, a thread of a GPU.

#include <cmath>
#include <string_view>

#include "lockstep/core/compiler.h"
#include "lockstep/kernels/elementwise.h"

namespace lockstep::kernels {

/// `saved` is the output y if `saves_output`, else the input x. `transcendental` functions are
/// worth (and need) vectors of a fixed size; the others are left to the compiler.
struct Neg {
  static constexpr std::string_view name = "neg";
  static constexpr bool saves_output = false, transcendental = false;
  template <class T>
  static LOCKSTEP_HOST_DEVICE T forward(T x) {
    return -x;
  }
  template <class T>
  static LOCKSTEP_HOST_DEVICE T backward(T dy, T) {
    return -dy;
  }
};

struct Exp {
  static constexpr std::string_view name = "exp";
  static constexpr bool saves_output = true, transcendental = true;
  template <class T>
  static LOCKSTEP_HOST_DEVICE T forward(const T& x) {
    using std::exp;
    return exp(x);
  }
  template <class T>
  static LOCKSTEP_HOST_DEVICE T backward(T dy, T y) {
    return dy * y;
  }
};

struct Log {
  static constexpr std::string_view name = "log";
  static constexpr bool saves_output = false, transcendental = true;
  template <class T>
  static LOCKSTEP_HOST_DEVICE T forward(const T& x) {
    using std::log;
    return log(x);
  }
  template <class T>
  static LOCKSTEP_HOST_DEVICE T backward(T dy, T x) {
    return dy / x;
  }
};

struct Relu {
  static constexpr std::string_view name = "relu";
  static constexpr bool saves_output = true, transcendental = false;
  template <class T>  // the comparisons are such that NaN passes
  static LOCKSTEP_HOST_DEVICE T forward(T x) {
    return x <= 0 ? T(0) : x;
  }
  template <class T>
  static LOCKSTEP_HOST_DEVICE T backward(T dy, T y) {
    return y <= 0 ? T(0) : dy;
  }
};

struct Sigmoid {
  static constexpr std::string_view name = "sigmoid";
  static constexpr bool saves_output = true, transcendental = true;
  template <class T>
  static LOCKSTEP_HOST_DEVICE T forward(const T& x) {
    using std::exp;
    return 1 / (1 + exp(-x));
  }
  template <class T>
  static LOCKSTEP_HOST_DEVICE T backward(T dy, T y) {
    return dy * (1 - y) * y;
  }
};

struct Tanh {
  static constexpr std::string_view name = "tanh";
  static constexpr bool saves_output = true, transcendental = true;
  template <class T>
  static LOCKSTEP_HOST_DEVICE T forward(const T& x) {
    using std::tanh;
    return tanh(x);
  }
  template <class T>
  static LOCKSTEP_HOST_DEVICE T backward(T dy, T y) {
    return dy * (1 - y * y);
  }
};

struct Square {
  static constexpr std::string_view name = "square";
  static constexpr bool saves_output = false, transcendental = false;
  template <class T>
  static LOCKSTEP_HOST_DEVICE T forward(T x) {
    return x * x;
  }
  template <class T>
  static LOCKSTEP_HOST_DEVICE T backward(T dy, T x) {
    return dy * 2 * x;
  }
};

struct Add {
  static constexpr std::string_view name = "add";
  template <class T>
  LOCKSTEP_HOST_DEVICE T operator()(T a, T b) const {
    return a + b;
  }
};
struct Sub {
  static constexpr std::string_view name = "sub";
  template <class T>
  LOCKSTEP_HOST_DEVICE T operator()(T a, T b) const {
    return a - b;
  }
};
struct Mul {
  static constexpr std::string_view name = "mul";
  template <class T>
  LOCKSTEP_HOST_DEVICE T operator()(T a, T b) const {
    return a * b;
  }
};
struct Div {
  static constexpr std::string_view name = "div";
  template <class T>
  LOCKSTEP_HOST_DEVICE T operator()(T a, T b) const {
    return a / b;
  }
};

/// Calls f with the functor behind the enumerator.
template <class F>
decltype(auto) visit(Unary op, F&& f) {
  switch (op) {
    case Unary::neg: return f(Neg{});
    case Unary::exp: return f(Exp{});
    case Unary::log: return f(Log{});
    case Unary::relu: return f(Relu{});
    case Unary::sigmoid: return f(Sigmoid{});
    case Unary::tanh: return f(Tanh{});
    case Unary::square: break;
  }
  return f(Square{});
}

template <class F>
decltype(auto) visit(Binary op, F&& f) {
  switch (op) {
    case Binary::add: return f(Add{});
    case Binary::sub: return f(Sub{});
    case Binary::mul: return f(Mul{});
    case Binary::div: break;
  }
  return f(Div{});
}

}  // namespace lockstep::kernels
