// Operations with a number, powers, remainders, and changes in place.
#include <cmath>

#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/ops/broadcasting.h"
#include "lockstep/autograd/ops/in_f32.h"
#include "lockstep/autograd/rows.h"
#include "lockstep/autograd/saved_tensor.h"
#include "lockstep/kernels/checks.h"
#include "lockstep/kernels/elementwise.h"

namespace lockstep {
namespace {

using kernels::Binary;

// f(x), where an operand of 16 bits meets a number in f32: the number is not rounded to 16 bits.
template <class F>
Tensor with_number(const char* name, const char* operand, const Tensor& x, F f) {
  check_defined(name, {{operand, x}});
  return is_16_bit(x.dtype()) ? in_f32(f, x) : f(x);
}

// f32 for a 16-bit tensor, else its own dtype.
DType computed_in(const Tensor& x) { return is_16_bit(x.dtype()) ? DType::f32 : x.dtype(); }

void refuse_fraction(Binary op, const Tensor& x, double number) {
  check<UsageError>(is_any_floating(x.dtype()) || number == std::trunc(number),
                    "[{}] {} beside a tensor of {}: cast(tensor, DType::f32) first",
                    kernels::name_of(op), number, x.dtype());
}

// The number as a tensor beside x, for this operation.
Tensor beside(Binary op, const Tensor& x, double number) {
  refuse_fraction(op, x, number);
  return like(x, number);
}

// y = x + b, or x - b: dx = dy. Of losses the means are shifted, each by as much.
Tensor shifted(Binary op, const Tensor& x, double b) {
  const Tensor number = beside(op, x, b);
  if (!is_any_floating(x.dtype())) return combined(op, x, number);
  return record_linear(
      op == Binary::add ? "add" : "sub", {apart(x)},
      [&](const auto& of) { return combined(op, of(x), number); },
      [](Gradients& g) { g.pass(0, g.output()); });
}

void refuse_recorded(Binary op, const Tensor& x) {
  check<StateError>(x.gradient_ref().tape == GradientRef::nothing || !Tape::current(),
                    "[{}] in place where a gradient is being recorded, of shape {}: write a = a + "
                    "b, or detach()",
                    kernels::name_of(op), x.shape());
}

// `b` is of the dtype that a is computed in.
Tensor in_place(Binary op, const Tensor& a, const Tensor& b) {
  refuse_recorded(op, a);
  const Tensor result = cast(a.detach(), computed_in(a));  // a itself, or a copy in f32
  const bool other_view =
      b.storage().data() == a.storage().data() && (b.raw() != a.raw() || b.shape() != a.shape());
  kernels::binary(op, result, other_view ? b.clone() : b, result);
  if (is_16_bit(a.dtype())) kernels::cast(result, a);
  a.storage().changed();
  change_rows(kernels::name_of(op), a, b);
  return a;
}

Tensor in_place_beside(Binary op, const Tensor& a, const Tensor& b) {
  (void)all_16_bit(kernels::name_of(op), {{"a", a}, {"b", b}});
  refuse_recorded(op, b);
  return in_place(op, a, cast(b.detach(), computed_in(b)));
}

Tensor in_place(Binary op, const Tensor& a, double b) {
  check_defined(kernels::name_of(op), {{"a", a}});
  refuse_fraction(op, a, b);
  return in_place(op, a, Tensor::scalar(b, computed_in(a), a.device()));
}

}  // namespace

Tensor operator+(const Tensor& a, double b) {
  return with_number("add", "a", a, [b](const Tensor& x) { return shifted(Binary::add, x, b); });
}
Tensor operator-(const Tensor& a, double b) {
  return with_number("sub", "a", a, [b](const Tensor& x) { return shifted(Binary::sub, x, b); });
}
Tensor operator*(const Tensor& a, double b) {
  check_defined("mul", {{"a", a}});
  return is_any_floating(a.dtype()) ? scale(a, b) : a * beside(Binary::mul, a, b);
}
// y = a / b: da = dy / b
Tensor operator/(const Tensor& a, double b) {
  check_defined("div", {{"a", a}});
  if (!is_any_floating(a.dtype())) return a / beside(Binary::div, a, b);
  return with_number("div", "a", a, [b](const Tensor& x) {
    const Tensor number = beside(Binary::div, x, b);
    return record_linear(
        "div", {apart(x)}, [&](const auto& of) { return combined(Binary::div, of(x), number); },
        [number](Gradients& g) {
          const auto dx = g.into(0);
          kernels::binary(Binary::div, g.output(), number, dx.tensor, dx.accumulate);
        });
  });
}
Tensor operator%(const Tensor& a, double b) {
  return with_number("remainder", "a", a,
                     [b](const Tensor& x) { return x % beside(Binary::remainder, x, b); });
}
Tensor operator-(double a, const Tensor& b) {
  return with_number("sub", "b", b, [a](const Tensor& x) { return beside(Binary::sub, x, a) - x; });
}
Tensor operator/(double a, const Tensor& b) {
  return with_number("div", "b", b, [a](const Tensor& x) { return beside(Binary::div, x, a) / x; });
}

// y = a - trunc(a / b) b: da = dy
Tensor operator%(const Tensor& a, const Tensor& b) {
  check<StateError>(b.gradient_ref().tape == GradientRef::nothing || !Tape::current() ||
                        !is_any_floating(b.dtype()),
                    "[remainder] no gradient flows into the divisor: detach() it");
  if (all_16_bit("remainder", {{"a", a}, {"b", b}}))
    return in_f32([](const Tensor& x, const Tensor& y) { return x % y; }, a, b);
  const Tensor y = combined(Binary::remainder, a, b);
  return record("remainder", y, {aligned(a, y.shape()), aligned(b, y.shape())},
                [](Gradients& g) { contribute(g, 0, g.output()); });
}

Tensor operator+=(const Tensor& a, const Tensor& b) { return in_place_beside(Binary::add, a, b); }
Tensor operator-=(const Tensor& a, const Tensor& b) { return in_place_beside(Binary::sub, a, b); }
Tensor operator*=(const Tensor& a, const Tensor& b) { return in_place_beside(Binary::mul, a, b); }
Tensor operator/=(const Tensor& a, const Tensor& b) { return in_place_beside(Binary::div, a, b); }
Tensor operator+=(const Tensor& a, double b) { return in_place(Binary::add, a, b); }
Tensor operator-=(const Tensor& a, double b) { return in_place(Binary::sub, a, b); }
Tensor operator*=(const Tensor& a, double b) { return in_place(Binary::mul, a, b); }
Tensor operator/=(const Tensor& a, double b) { return in_place(Binary::div, a, b); }

// From the nearer end, as PyTorch does: x + w (y - x), or y - (1 - w) (y - x), where w is a number
// of the tensors' dtype: dx = (1 - w) dz, dy = w dz
Tensor lerp(const Tensor& x, const Tensor& y, double weight) {
  if (all_16_bit("lerp", {{"x", x}, {"y", y}}))
    return in_f32([weight](const Tensor& a, const Tensor& b) { return lerp(a, b, weight); }, x, y);
  kernels::check_differentiable("lerp", x);
  const double w = x.dtype() == DType::f32 ? static_cast<float>(weight) : weight;
  const Tensor z = combined(Binary::sub, y, x);
  if (std::abs(w) < 0.5) {
    kernels::scale(w, z, z, false);
    kernels::binary(Binary::add, x, z, z);
  } else {
    kernels::scale(1 - w, z, z, false);
    kernels::binary(Binary::sub, y, z, z);
  }
  return record("lerp", z, {aligned(x, z.shape()), aligned(y, z.shape())}, [w](Gradients& g) {
    contribute(g, 0, g.output(), 1 - w);
    contribute(g, 1, g.output(), w);
  });
}

// y = x^c: dx = c x^(c - 1) dy, which is 0 for c = 0
Tensor pow(const Tensor& x, double exponent) {
  check_defined("pow", {{"x", x}});
  check<DTypeError>(is_any_floating(x.dtype()), "[pow] takes f32, f64, f16 or bf16, got {}",
                    x.dtype());
  if (exponent == 2) return square(x);
  if (is_16_bit(x.dtype()))
    return in_f32([exponent](const Tensor& wide) { return pow(wide, exponent); }, x);
  const Tensor y = combined(Binary::pow, x, like(x, exponent));
  return record("pow", y, {apart(x)}, [x = SavedTensor(x), exponent](Gradients& g) {
    if (exponent == 0) return g.pass(0, zeros_like(*x));
    const Tensor slope = combined(Binary::pow, *x, like(*x, exponent - 1));
    kernels::scale(exponent, slope, slope, false);
    const auto dx = g.into(0);
    kernels::binary(Binary::mul, g.output(), slope, dx.tensor, dx.accumulate);
  });
}

Tensor pow(double base, const Tensor& exponent) {
  return with_number("pow", "exponent", exponent,
                     [base](const Tensor& x) { return pow(like(x, base), x); });
}

// y = a^b: da = b a^(b - 1) dy, which is 0 where b is 0; db = log(a) y dy, which is 0 where a is 0
Tensor pow(const Tensor& base, const Tensor& exponent) {
  if (all_16_bit("pow", {{"base", base}, {"exponent", exponent}}))
    return in_f32([](const Tensor& a, const Tensor& b) { return pow(a, b); }, base, exponent);
  const Tensor y = combined(Binary::pow, base, exponent);
  return record(
      "pow", y, {aligned(base, y.shape()), aligned(exponent, y.shape())},
      [y = SavedTensor(y), a = SavedTensor(base), b = SavedTensor(exponent)](Gradients& g) {
        if (g.needed(0)) {
          const Tensor slope = where(*b == 0.0, 0.0, *b * combined(Binary::pow, *a, *b - 1.0));
          contribute(g, 0, g.output() * slope);
        }
        if (g.needed(1)) {
          const Tensor slope = where(*a == 0.0, 0.0, log(*a) * *y);
          contribute(g, 1, g.output() * slope);
        }
      });
}

}  // namespace lockstep
