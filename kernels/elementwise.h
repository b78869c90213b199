#pragma once
/// Elementwise kernels, f32 and f64, in place where an output is also an input of the same shape.
/// The formulas are in functors.h.
///
/// The bits of an element depend on its inputs alone: not on its position, on the size of the
/// tensor, on the alignment of its memory, or on how many elements the processor's vectors have
/// (formulas/elementary.h).
///
/// As in all kernels: outputs are given, nothing is allocated but scratch; tensors may have 0
/// elements; wrong shapes, dtypes and devices throw ShapeError, DTypeError, DeviceError. Where an
/// output is a gradient, `accumulate` says whether to add to it (true) or overwrite it (false:
/// whatever it held, NaN included, is gone).

#include <string_view>

#include "lockstep/core/tensor.h"

namespace lockstep::kernels {

/// Every operation of one operand: its name, and its formula's (functors.h).
// clang-format off
#define LOCKSTEP_UNARY_OPERATIONS(of)                                                          \
  of(neg, Neg) of(exp, Exp) of(expm1, Expm1) of(log, Log) of(log1p, Log1p) of(sqrt, Sqrt)      \
  of(rsqrt, Rsqrt) of(reciprocal, Reciprocal) of(square, Square) of(abs, Abs) of(sign, Sign)   \
  of(floor, Floor) of(round, Round) of(sin, Sin) of(cos, Cos) of(erf, Erf) of(relu, Relu)      \
  of(elu, Elu) of(sigmoid, Sigmoid) of(tanh, Tanh) of(gelu, Gelu) of(gelu_tanh, GeluTanh)      \
  of(silu, Silu) of(softplus, Softplus)
// clang-format on

#define LOCKSTEP_ENUMERATOR(name, Formula) name,
enum class Unary : std::uint8_t { LOCKSTEP_UNARY_OPERATIONS(LOCKSTEP_ENUMERATOR) };
#undef LOCKSTEP_ENUMERATOR
/// `leaky` is a, or a b where a is not above 0; `leaky_slope` is 1 and b there.
enum class Binary : std::uint8_t {
  add,
  sub,
  mul,
  div,
  remainder,
  maximum,
  minimum,
  pow,
  leaky,
  leaky_slope
};

/// The enumerator's name, which error messages carry.
std::string_view name_of(Unary op);
std::string_view name_of(Binary op);

/// out = op(x), of the same shape.
///
/// relu(NaN) is NaN. docs/precision.md says how far each function is from the truth; none leaves
/// its range, and a function that rises or falls everywhere does so in f32. Subnormal numbers
/// count.
void unary(Unary op, const Tensor& x, const Tensor& out);

/// What `unary_backward` wants as `saved`: the output y (true), or the input x (false).
bool saves_output(Unary op);

/// dx (+)= dy * op'(x), computed from what is cheapest to keep: see `saves_output`. neg looks at no
/// saved tensor, which may then be undefined.
void unary_backward(Unary op, const Tensor& dy, const Tensor& saved, const Tensor& dx,
                    bool accumulate);

/// out (+)= a op b with NumPy's broadcasting. `out` has the broadcast shape, and may be `a` or `b`
/// if that one has it too. Integers of any width too, but not `pow` and not added up.
void binary(Binary op, const Tensor& a, const Tensor& b, const Tensor& out,
            bool accumulate = false);

/// out (+)= alpha * x, of the same shape; f16 and bf16 too. With `accumulate` this is BLAS's axpy.
void scale(double alpha, const Tensor& x, const Tensor& out, bool accumulate);

/// out (+)= alpha * x, where x is repeated along the dimensions that it lacks or has as 1. Throws
/// ShapeError unless x broadcasts to the shape of `out`. `out` may be x if it has x's shape, and
/// must not overlap it otherwise. f16 and bf16 too.
void broadcast_to(const Tensor& x, const Tensor& out, bool accumulate = false, double alpha = 1);

/// out = x in out's dtype, of the same shape. Rounds to the nearest, ties to even; f64 reaches the
/// 16-bit types by way of f32, rounded twice. To an integer it drops the fraction; a number that
/// the integer does not hold becomes an undefined one.
void cast(const Tensor& x, const Tensor& out);

/// out = x^T, matrix by matrix: (..., N, C) -> (..., C, N), any dtype. (Products need no transposed
/// copy: matmul has flags.)
void transpose(const Tensor& x, const Tensor& out);
/// The shape of the transpose: the last two sizes exchanged. Throws ShapeError for fewer than two.
Shape transposed(const Shape& shape);

}  // namespace lockstep::kernels
