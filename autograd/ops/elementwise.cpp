#include "lockstep/kernels/elementwise.h"

#include "lockstep/autograd/lanes/lane_losses.h"
#include "lockstep/autograd/lanes/row_sum.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/ops/broadcasting.h"
#include "lockstep/autograd/ops/in_f32.h"
#include "lockstep/autograd/saved_tensor.h"
#include "lockstep/kernels/reduce.h"

namespace lockstep {

using kernels::Binary;
using kernels::Unary;

Tensor like(const Tensor& x, double number) {
  return Tensor::scalar(number, x.dtype(), x.device());
}

Tensor combined(Binary op, const Tensor& a, const Tensor& b) {
  check<StateError>(a.defined() && b.defined(), "[{}] an operand is undefined",
                    kernels::name_of(op));
  const Tensor y = Tensor::empty(Shape::broadcast(kernels::name_of(op), a.shape(), b.shape()),
                                 a.dtype(), a.device());
  kernels::binary(op, a, b, y);
  return y;
}

void contribute(Gradients& g, int i, const Tensor& gradient, const Shape& operand, double sign) {
  if (!g.needed(i)) return;
  const Shape& shape = g.per_lane() ? gradient.shape() : operand;
  if (sign == 1 && gradient.shape() == shape) return g.pass(i, gradient);
  if (gradient.shape() == shape) {
    const auto to = g.into(i);
    return kernels::scale(sign, gradient, to.tensor, to.accumulate);
  }
  const auto add = [&](const Tensor& part, const Gradients::Destination& to) {
    if (sign == 1) return kernels::sum_to(part, to.tensor, to.accumulate);
    const Tensor summed = Tensor::empty(operand, part.dtype(), part.device());
    kernels::sum_to(part, summed);
    kernels::scale(sign, summed, to.tensor, to.accumulate);
  };
  // The first dimension, which counts samples, is added up, unless the operand has it.
  const bool of_rows = operand.rank() < gradient.rank() || (operand.rank() > 0 && operand[0] == 1);
  if (!of_rows) return add(gradient, g.into(i));
  if (RowSum sum(g, i, rows_in(gradient)); sum)
    sum.each([&](std::int64_t begin, std::int64_t end, const Gradients::Destination& to) {
      add(rows_of(gradient, begin, end), to);
    });
}

namespace {

// d(operand i) = factor * other, or factor / other, then summed back.
void contribute(Gradients& g, int i, Binary op, const Tensor& factor, const Tensor& other,
                const Shape& operand, double sign = 1) {
  if (!g.needed(i)) return;
  if (sign == 1 && operand == factor.shape()) {
    const auto to = g.into(i);
    return kernels::binary(op, factor, other, to.tensor, to.accumulate);
  }
  const Tensor product = Tensor::empty(factor.shape(), factor.dtype(), factor.device());
  kernels::binary(op, factor, other, product);
  contribute(g, i, product, operand, sign);
}

Tensor unary(const char* name, Unary op, const Tensor& x) {
  check<StateError>(x.defined(), "[{}] the operand is undefined", name);
  if (is_16_bit(x.dtype())) return in_f32(unary, name, op, x);
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  kernels::unary(op, x, y);
  const Tensor recorded = record(
      name, y, {&x}, [op, saved = SavedTensor(kernels::saves_output(op) ? y : x)](Gradients& g) {
        const auto dx = g.into(0);
        kernels::unary_backward(op, g.output(), *saved, dx.tensor, dx.accumulate);
      });
  return with_lanes_of(recorded, x, [&] {
    const Tensor lanes = Tensor::empty(lane_losses(x).shape(), x.dtype(), x.device());
    kernels::unary(op, lane_losses(x), lanes);
    return lanes;
  });
}

}  // namespace

// y = a + b: da = dy, db = dy
Tensor add(const Tensor& a, const Tensor& b) {
  if (all_16_bit("add", {{"a", a}, {"b", b}})) return in_f32(add, a, b);
  const Tensor y = record("add", combined(Binary::add, a, b), {&a, &b},
                          [sa = a.shape(), sb = b.shape()](Gradients& g) {
                            contribute(g, 0, g.output(), sa);
                            contribute(g, 1, g.output(), sb);
                          });
  return with_lanes_of(y, a, [&] { return combined(Binary::add, lane_losses(a), lane_losses(b)); });
}

// y = a - b: da = dy, db = -dy
Tensor sub(const Tensor& a, const Tensor& b) {
  if (all_16_bit("sub", {{"a", a}, {"b", b}})) return in_f32(sub, a, b);
  const Tensor y = record("sub", combined(Binary::sub, a, b), {&a, &b},
                          [sa = a.shape(), sb = b.shape()](Gradients& g) {
                            contribute(g, 0, g.output(), sa);
                            contribute(g, 1, g.output(), sb, -1);
                          });
  return with_lanes_of(y, a, [&] { return combined(Binary::sub, lane_losses(a), lane_losses(b)); });
}

// y = a b: da = dy b, db = dy a
Tensor mul(const Tensor& a, const Tensor& b) {
  if (all_16_bit("mul", {{"a", a}, {"b", b}})) return in_f32(mul, a, b);
  return record("mul", combined(Binary::mul, a, b), {&a, &b},
                [a = SavedTensor(a), b = SavedTensor(b)](Gradients& g) {
                  if (g.needed(0)) contribute(g, 0, Binary::mul, g.output(), *b, a.shape());
                  if (g.needed(1)) contribute(g, 1, Binary::mul, g.output(), *a, b.shape());
                });
}

// y = a / b: da = dy / b, db = -dy y / b
Tensor div(const Tensor& a, const Tensor& b) {
  if (all_16_bit("div", {{"a", a}, {"b", b}})) return in_f32(div, a, b);
  const Tensor y = combined(Binary::div, a, b);
  return record("div", y, {&a, &b},
                [y = SavedTensor(y), sa = a.shape(), b = SavedTensor(b)](Gradients& g) {
                  contribute(g, 0, Binary::div, g.output(), *b, sa);
                  if (!g.needed(1)) return;
                  const Tensor dy_y = Tensor::empty(y.shape(), y->dtype(), y->device());
                  kernels::binary(Binary::mul, g.output(), *y, dy_y);
                  contribute(g, 1, Binary::div, dy_y, *b, b.shape(), -1);
                });
}

#define LOCKSTEP_OPERATION(name, Formula) \
  Tensor name(const Tensor& x) { return unary(#name, Unary::name, x); }
LOCKSTEP_UNARY_OPERATIONS(LOCKSTEP_OPERATION)
#undef LOCKSTEP_OPERATION

Tensor log_sigmoid(const Tensor& x) { return -softplus(-x); }

// y = c x: dx = c dy
Tensor scale(const Tensor& x, double factor) {
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  kernels::scale(factor, x, y, false);
  const Tensor recorded = record("scale", y, {&x}, [factor](Gradients& g) {
    const auto dx = g.into(0);
    kernels::scale(factor, g.output(), dx.tensor, dx.accumulate);
  });
  return with_lanes_of(recorded, x, [&] {
    const Tensor lanes = Tensor::empty(lane_losses(x).shape(), x.dtype(), x.device());
    kernels::scale(factor, lane_losses(x), lanes, false);
    return lanes;
  });
}

// y = x in another dtype: dx = dy in x's. A sum is made in at least f32.
Tensor cast(const Tensor& x, DType dtype) {
  if (dtype == x.dtype()) return x;
  const auto to = [](const Tensor& from, DType type) {
    const Tensor y = Tensor::empty(from.shape(), type, from.device());
    kernels::cast(from, y);
    return y;
  };
  if (!is_any_floating(dtype) || !is_any_floating(x.dtype())) {
    const bool by_f32 = is_16_bit(dtype) || is_16_bit(x.dtype());
    return to(by_f32 ? to(x.detach(), DType::f32) : x.detach(), dtype);
  }
  const Tensor y = record("cast", to(x, dtype), {&x}, [to](Gradients& g) {
    const auto dx = g.into(0);
    if (!dx.accumulate) return kernels::cast(g.output(), dx.tensor);
    const DType sum_type = dx.tensor.dtype() == DType::f64 ? DType::f64 : DType::f32;
    const Tensor sum = to(dx.tensor, sum_type);
    kernels::scale(1, to(g.output(), sum_type), sum, true);
    kernels::cast(sum, dx.tensor);
  });
  return with_lanes_of(y, x, [&] { return to(lane_losses(x), dtype); });
}

}  // namespace lockstep
