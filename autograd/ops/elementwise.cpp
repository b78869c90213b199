#include "lockstep/kernels/elementwise.h"

#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/ops/broadcasting.h"
#include "lockstep/autograd/ops/in_f32.h"
#include "lockstep/autograd/rows.h"
#include "lockstep/autograd/saved_tensor.h"
#include "lockstep/kernels/reduce.h"

namespace lockstep {

using kernels::Binary;
using kernels::Unary;

Tensor like(const Tensor& x, double number) {
  return Tensor::scalar(number, x.dtype(), x.device());
}

Tensor combined(Binary op, const Tensor& a, const Tensor& b) {
  check_defined(kernels::name_of(op), {{"a", a}, {"b", b}});
  const Tensor y = Tensor::empty(Shape::broadcast(kernels::name_of(op), a.shape(), b.shape()),
                                 a.dtype(), a.device());
  kernels::binary(op, a, b, y);
  return keep_rows(kernels::name_of(op), y, {aligned(a, y.shape()), aligned(b, y.shape())});
}

void contribute(Gradients& g, int i, const Tensor& gradient, double sign) {
  if (!g.needed(i)) return;
  const auto add = [sign](const Tensor& part, const Gradients::Destination& to) {
    if (sign == 1) return kernels::sum_to(part, to.tensor, to.accumulate);
    const Tensor summed = Tensor::empty(to.tensor.shape(), part.dtype(), part.device());
    kernels::sum_to(part, summed);
    kernels::scale(sign, summed, to.tensor, to.accumulate);
  };
  if (g.sums_rows(i))
    return sum_rows(g, i, rows_in(gradient),
                    [&](const RowRange& rows, const auto& to) { add(rows.of(gradient), to); });
  if (gradient.numel() != g.shape(i).numel()) return add(gradient, g.into(i));
  if (sign == 1) return g.pass(i, gradient);
  const auto to = g.into(i);
  kernels::scale(sign, gradient.detach().view(to.tensor.shape()), to.tensor, to.accumulate);
}

namespace {

// d(operand i) = factor * other, or factor / other, then summed back.
void contribute(Gradients& g, int i, Binary op, const Tensor& factor, const Tensor& other,
                double sign = 1) {
  if (!g.needed(i)) return;
  if (sign == 1 && !g.sums_rows(i) && g.shape(i) == factor.shape()) {
    const auto to = g.into(i);
    return kernels::binary(op, factor, other, to.tensor, to.accumulate);
  }
  const Tensor product = Tensor::empty(factor.shape(), factor.dtype(), factor.device());
  kernels::binary(op, factor, other, product);
  contribute(g, i, product, sign);
}

Tensor unary(const char* name, Unary op, const Tensor& x) {
  check_defined(name, {{"x", x}});
  if (is_16_bit(x.dtype())) return in_f32(unary, name, op, x);
  const auto make = [&](const auto& of) {
    const Tensor y = Tensor::empty(of(x).shape(), x.dtype(), x.device());
    kernels::unary(op, of(x), y);
    return y;
  };
  const auto backward_from = [op](const Tensor& kept) {
    return [op, kept = SavedTensor(kept)](Gradients& g) {
      const auto dx = g.into(0);
      kernels::unary_backward(op, g.output(), *kept, dx.tensor, dx.accumulate);
    };
  };
  if (op == Unary::neg) return record_linear(name, {apart(x)}, make, backward_from(x));
  const Tensor y = make([](const Tensor& operand) -> const Tensor& { return operand; });
  const bool steps = op == Unary::sign || op == Unary::floor || op == Unary::round;
  return record(name, y, {apart(x)}, backward_from(kernels::saves_output(op) ? y : x),
                steps ? Makes::steps : Makes::rows);
}

// y = a + sign b: da = dy, db = sign dy
Tensor add_signed(const char* name, Binary op, double sign, const Tensor& a, const Tensor& b) {
  if (all_16_bit(name, {{"a", a}, {"b", b}})) return in_f32(add_signed, name, op, sign, a, b);
  const Shape shape = Shape::broadcast(name, a.shape(), b.shape());
  return record_linear(
      name, {aligned(a, shape), aligned(b, shape)},
      [&](const auto& of) { return combined(op, of(a), of(b)); },
      [sign](Gradients& g) {
        contribute(g, 0, g.output());
        contribute(g, 1, g.output(), sign);
      });
}

}  // namespace

Tensor add(const Tensor& a, const Tensor& b) { return add_signed("add", Binary::add, 1, a, b); }
Tensor sub(const Tensor& a, const Tensor& b) { return add_signed("sub", Binary::sub, -1, a, b); }

// y = a b: da = dy b, db = dy a
Tensor mul(const Tensor& a, const Tensor& b) {
  if (all_16_bit("mul", {{"a", a}, {"b", b}})) return in_f32(mul, a, b);
  const Tensor y = combined(Binary::mul, a, b);
  return record("mul", y, {aligned(a, y.shape()), aligned(b, y.shape())},
                [a = SavedTensor(a), b = SavedTensor(b)](Gradients& g) {
                  if (g.needed(0)) contribute(g, 0, Binary::mul, g.output(), *b);
                  if (g.needed(1)) contribute(g, 1, Binary::mul, g.output(), *a);
                });
}

// y = a / b: da = dy / b, db = -dy y / b
Tensor div(const Tensor& a, const Tensor& b) {
  if (all_16_bit("div", {{"a", a}, {"b", b}})) return in_f32(div, a, b);
  const Tensor y = combined(Binary::div, a, b);
  return record("div", y, {aligned(a, y.shape()), aligned(b, y.shape())},
                [y = SavedTensor(y), b = SavedTensor(b)](Gradients& g) {
                  contribute(g, 0, Binary::div, g.output(), *b);
                  if (!g.needed(1)) return;
                  const Tensor dy_y = Tensor::empty(y.shape(), y->dtype(), y->device());
                  kernels::binary(Binary::mul, g.output(), *y, dy_y);
                  contribute(g, 1, Binary::div, dy_y, *b, -1);
                });
}

#define LOCKSTEP_OPERATION(name, Formula) \
  Tensor name(const Tensor& x) { return unary(#name, Unary::name, x); }
LOCKSTEP_UNARY_OPERATIONS(LOCKSTEP_OPERATION)
#undef LOCKSTEP_OPERATION

Tensor log_sigmoid(const Tensor& x) {
  check_defined("log_sigmoid", {{"x", x}});
  return -softplus(-x);
}

// y = c x: dx = c dy
Tensor scale(const Tensor& x, double factor) {
  check_defined("scale", {{"x", x}});
  const auto scaled = [factor](const Tensor& from) {
    const Tensor y = Tensor::empty(from.shape(), from.dtype(), from.device());
    kernels::scale(factor, from, y, false);
    return y;
  };
  return record_linear(
      "scale", {apart(x)}, [&](const auto& of) { return scaled(of(x)); },
      [factor](Gradients& g) {
        const auto dx = g.into(0);
        kernels::scale(factor, g.output(), dx.tensor, dx.accumulate);
      });
}

// y = x in another dtype: dx = dy in x's. A sum is made in at least f32.
Tensor cast(const Tensor& x, DType dtype) {
  check_defined("cast", {{"x", x}});
  if (dtype == x.dtype()) return x;
  const auto to = [](const Tensor& from, DType type) {
    const Tensor y = Tensor::empty(from.shape(), type, from.device());
    kernels::cast(from, y);
    return y;
  };
  if (!is_any_floating(dtype) || !is_any_floating(x.dtype())) {
    const bool by_f32 = is_16_bit(dtype) || is_16_bit(x.dtype());
    return keep_rows("cast", to(by_f32 ? to(x.detach(), DType::f32) : x.detach(), dtype),
                     {apart(x)});
  }
  const auto make = [&](const auto& of) { return to(of(x), dtype); };
  return record_linear("cast", {apart(x)}, make, [to](Gradients& g) {
    const auto dx = g.into(0);
    if (!dx.accumulate) return kernels::cast(g.output(), dx.tensor);
    const DType sum_type = dx.tensor.dtype() == DType::f64 ? DType::f64 : DType::f32;
    const Tensor sum = to(dx.tensor, sum_type);
    kernels::scale(1, to(g.output(), sum_type), sum, true);
    kernels::cast(sum, dx.tensor);
  });
}

}  // namespace lockstep
