#include <cmath>

#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/ops/broadcasting.h"
#include "lockstep/autograd/ops/choices.h"
#include "lockstep/autograd/ops/in_f32.h"
#include "lockstep/autograd/ops/shapes.h"
#include "lockstep/autograd/rows.h"
#include "lockstep/autograd/saved_tensor.h"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/indexed.h"
#include "lockstep/kernels/reduce.h"

namespace lockstep {
namespace {

using kernels::Binary;
using kernels::Compare;

Tensor compared(Compare op, const Tensor& a, const Tensor& b) {
  if (all_16_bit("compare", {{"a", a}, {"b", b}}))
    return compared(op, cast(a.detach(), DType::f32), cast(b.detach(), DType::f32));
  const Tensor out =
      Tensor::empty(Shape::broadcast("compare", a.shape(), b.shape()), DType::u8, a.device());
  kernels::compare(op, a, b, out);
  return keep_rows("compare", out, {aligned(a, out.shape()), aligned(b, out.shape())});
}

// Beside a number that not every dtype of integers has, they are compared as f64.
Tensor compared(Compare op, const Tensor& a, double b) {
  check_defined("compare", {{"a", a}});
  const bool exact = is_any_floating(a.dtype()) || (b == std::trunc(b) && b >= 0 && b < 128);
  const Tensor x = exact ? a : cast(a.detach(), DType::f64);
  return compared(op, x, like(x, b));
}

// a or, where the mask says, b; of the shape of all three.
Tensor chosen(const Tensor& mask, const Tensor& a, const Tensor& b) {
  check_defined("where", {{"mask", mask}});
  (void)all_16_bit("where", {{"a", a}, {"b", b}});
  check_dtype("where", {"mask", mask}, DType::u8);
  const Shape shape =
      Shape::broadcast("where", mask.shape(), Shape::broadcast("where", a.shape(), b.shape()));
  const Tensor out = Tensor::empty(shape, a.dtype(), a.device());
  kernels::copy_window(shape, b.detach(), kernels::repeated(b.shape(), shape), out,
                       kernels::whole(shape), false);
  kernels::masked_copy(mask, a.detach(), out);
  return out;
}

// y = x where `kept` says so of x, else a bound: dx = dy where x was kept.
template <class Kept>
Tensor bounded(const char* name, const Tensor& x, const Tensor& y, Kept kept) {
  return record(name, y, {apart(x)}, [x = SavedTensor(x), kept](Gradients& g) {
    g.pass(0, chosen(kept(*x), g.output(), like(g.output(), 0)));
  });
}

Tensor bounded(const char* name, const Tensor& x, Binary op, Compare kept, double bound) {
  const Tensor limit = like(x, bound);
  return bounded(name, x, combined(op, x, limit),
                 [kept, limit](const Tensor& v) { return compared(kept, v, limit); });
}

// 0 where a loses, 1/2 where both are equal, else 1: both get the gradient of NaN.
Tensor share(Compare loses, const Tensor& a, const Tensor& b) {
  const Tensor won = cast(~compared(loses, a, b), a.dtype());
  kernels::scale(-0.5, cast(compared(Compare::eq, a, b), a.dtype()), won, true);
  return won;
}

Tensor winner(const char* name, Binary op, Compare loses, const Tensor& a, const Tensor& b) {
  if (all_16_bit(name, {{"a", a}, {"b", b}})) return in_f32(winner, name, op, loses, a, b);
  const Tensor y = combined(op, a, b);
  return record(name, y, {aligned(a, y.shape()), aligned(b, y.shape())},
                [loses, a = SavedTensor(a), b = SavedTensor(b)](Gradients& g) {
                  if (g.needed(0))
                    contribute(g, 0, combined(Binary::mul, g.output(), share(loses, *a, *b)));
                  if (g.needed(1))
                    contribute(g, 1, combined(Binary::mul, g.output(), share(loses, *b, *a)));
                });
}

Tensor triangle(const char* name, const Tensor& x, std::int64_t k, Compare op) {
  check_defined(name, {{"x", x}});
  check<ShapeError>(x.rank() >= 2, "[{}] of a tensor of shape {}", name, x.shape());
  if (x.rank() == 2) refuse_mixing(name, {shared(x)});
  const Tensor row = detail::positions(x.size(-2), x.device());
  const Tensor column = detail::positions(x.size(-1), x.device()) - static_cast<double>(k);
  const Tensor y = where(compared(op, column, row.view({x.size(-2), 1})), x, 0.0);
  return keep_rows(name, y, {x.rank() == 2 ? shared(x) : apart(x)});
}

}  // namespace

Tensor operator==(const Tensor& a, const Tensor& b) { return compared(Compare::eq, a, b); }
Tensor operator!=(const Tensor& a, const Tensor& b) { return compared(Compare::ne, a, b); }
Tensor operator<(const Tensor& a, const Tensor& b) { return compared(Compare::lt, a, b); }
Tensor operator<=(const Tensor& a, const Tensor& b) { return compared(Compare::le, a, b); }
Tensor operator>(const Tensor& a, const Tensor& b) { return compared(Compare::gt, a, b); }
Tensor operator>=(const Tensor& a, const Tensor& b) { return compared(Compare::ge, a, b); }
Tensor operator==(const Tensor& a, double b) { return compared(Compare::eq, a, b); }
Tensor operator!=(const Tensor& a, double b) { return compared(Compare::ne, a, b); }
Tensor operator<(const Tensor& a, double b) { return compared(Compare::lt, a, b); }
Tensor operator<=(const Tensor& a, double b) { return compared(Compare::le, a, b); }
Tensor operator>(const Tensor& a, double b) { return compared(Compare::gt, a, b); }
Tensor operator>=(const Tensor& a, double b) { return compared(Compare::ge, a, b); }

Tensor operator&(const Tensor& a, const Tensor& b) {
  check_defined("and", {{"a", a}, {"b", b}});
  return combined(Binary::minimum, a != 0, b != 0);
}
Tensor operator|(const Tensor& a, const Tensor& b) {
  check_defined("or", {{"a", a}, {"b", b}});
  return combined(Binary::maximum, a != 0, b != 0);
}
Tensor operator~(const Tensor& mask) {
  check_defined("~", {{"mask", mask}});
  check<DTypeError>(mask.dtype() == DType::u8, "[~] of a mask (u8), got {}", mask.dtype());
  return mask == 0;
}

Tensor isnan(const Tensor& x) {
  check_defined("isnan", {{"x", x}});
  return compared(Compare::ne, x, x);
}
Tensor isfinite(const Tensor& x) {
  check_defined("isfinite", {{"x", x}});
  return x.detach() - x.detach() == 0.0;
}

Tensor isinf(const Tensor& x) {
  check_defined("isinf", {{"x", x}});
  return ~isfinite(x) & ~isnan(x);
}

bool allclose(const Tensor& a, const Tensor& b, double relative, double absolute) {
  check_defined("allclose", {{"a", a}, {"b", b}});
  const Tensor distance = abs(a.detach() - b.detach());
  const Tensor near = distance <= absolute + relative * abs(b.detach());
  return all((a == b) | (near & isfinite(distance))).item() != 0;
}

Tensor where(const Tensor& mask, const Tensor& a, const Tensor& b) {
  const Tensor y = chosen(mask, a, b);
  const auto rows = [&](const Tensor& x) { return aligned(x, y.shape()); };
  return record("where", y, {rows(a), rows(b), rows(mask)},
                [mask = SavedTensor(mask)](Gradients& g) {
                  const Tensor& dy = g.output();
                  if (g.needed(0)) contribute(g, 0, chosen(*mask, dy, like(dy, 0)));
                  if (g.needed(1)) contribute(g, 1, chosen(*mask, like(dy, 0), dy));
                });
}
Tensor where(const Tensor& mask, const Tensor& a, double b) {
  check_defined("where", {{"mask", mask}, {"a", a}});
  return where(mask, a, like(a, b));
}
Tensor where(const Tensor& mask, double a, const Tensor& b) {
  check_defined("where", {{"mask", mask}, {"b", b}});
  return where(mask, like(b, a), b);
}
Tensor where(const Tensor& mask, double a, double b) {
  check_defined("where", {{"mask", mask}});
  return where(mask, Tensor::scalar(a, DType::f32, mask.device()), b);
}
Tensor masked_fill(const Tensor& x, const Tensor& mask, double value) {
  check_defined("masked_fill", {{"x", x}, {"mask", mask}});
  return where(mask, value, x);
}

Tensor maximum(const Tensor& a, const Tensor& b) {
  return winner("maximum", Binary::maximum, Compare::lt, a, b);
}
Tensor minimum(const Tensor& a, const Tensor& b) {
  return winner("minimum", Binary::minimum, Compare::gt, a, b);
}
Tensor clamp(const Tensor& x, double low, double high) {
  check_defined("clamp", {{"x", x}});
  check<UsageError>(low <= high, "[clamp] from {} to {}", low, high);
  if (is_16_bit(x.dtype())) return in_f32(clamp, x, low, high);
  const Tensor least = like(x, low), most = like(x, high), y = combined(Binary::maximum, x, least);
  kernels::binary(Binary::minimum, y, most, y);
  return bounded("clamp", x, y, [least, most](const Tensor& v) {
    return combined(Binary::minimum, compared(Compare::gt, v, least),
                    compared(Compare::lt, v, most));
  });
}
Tensor clamp_min(const Tensor& x, double low) {
  check_defined("clamp_min", {{"x", x}});
  if (is_16_bit(x.dtype())) return in_f32(clamp_min, x, low);
  return bounded("clamp_min", x, Binary::maximum, Compare::gt, low);
}
Tensor clamp_max(const Tensor& x, double high) {
  check_defined("clamp_max", {{"x", x}});
  if (is_16_bit(x.dtype())) return in_f32(clamp_max, x, high);
  return bounded("clamp_max", x, Binary::minimum, Compare::lt, high);
}
// dx = dy, or slope dy where x is not above 0
Tensor leaky_relu(const Tensor& x, double slope) {
  check_defined("leaky_relu", {{"x", x}});
  check<DTypeError>(is_any_floating(x.dtype()), "[leaky_relu] takes f32, f64, f16 or bf16, got {}",
                    x.dtype());
  if (is_16_bit(x.dtype())) return in_f32(leaky_relu, x, slope);
  const Tensor factor = like(x, slope);
  return record("leaky_relu", combined(Binary::leaky, x, factor), {apart(x)},
                [x = SavedTensor(x), factor](Gradients& g) {
                  const Tensor slopes = combined(Binary::leaky_slope, *x, factor);
                  const auto dx = g.into(0);
                  kernels::binary(Binary::mul, g.output(), slopes, dx.tensor, dx.accumulate);
                });
}

Tensor tril(const Tensor& x, std::int64_t k) { return triangle("tril", x, k, Compare::le); }
Tensor triu(const Tensor& x, std::int64_t k) { return triangle("triu", x, k, Compare::ge); }

}  // namespace lockstep
