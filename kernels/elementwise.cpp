#include "lockstep/kernels/elementwise.h"

#include "lockstep/kernels/backend/backend.h"
#include "lockstep/kernels/backend/in_f32.h"
#include "lockstep/kernels/checks.h"
#include "lockstep/kernels/formulas/functors.h"

namespace lockstep::kernels {

std::string_view name_of(Unary op) {
  return visit(op, [](auto functor) { return decltype(functor)::name; });
}

std::string_view name_of(Binary op) {
  return visit(op, [](auto functor) { return decltype(functor)::name; });
}

bool saves_output(Unary op) {
  return visit(op, [](auto functor) { return decltype(functor)::saves_output; });
}

void unary(Unary op, const Tensor& x, const Tensor& out) {
  const std::string_view name = name_of(op);
  check_defined(name, "x", x);
  check_differentiable(name, x);
  check_alike(name, "out", out, x);
  backend_of(x.device()).unary(op, x, out);
}

void unary_backward(Unary op, const Tensor& dy, const Tensor& saved, const Tensor& dx,
                    bool accumulate) {
  const std::string_view name = name_of(op);
  const Tensor& values = op == Unary::neg ? dy : saved;
  check_defined(name, "dy", dy);
  check_differentiable(name, dy);
  check_alike(name, "saved", values, dy);
  check_alike(name, "dx", dx, dy);
  backend_of(dy.device()).unary_backward(op, dy, values, dx, accumulate);
}

void binary(Binary op, const Tensor& a, const Tensor& b, const Tensor& out, bool accumulate) {
  const std::string_view name = name_of(op);
  check_defined(name, "a", a);
  check_beside(name, "b", b, a.dtype(), a);
  check_beside(name, "out", out, a.dtype(), a);
  check_shape(name, "out", out, Shape::broadcast(name, a.shape(), b.shape()));
  Backend& backend = backend_of(a.device());
  if (is_differentiable(a.dtype())) return backend.binary(op, a, b, out, accumulate);
  check<DTypeError>(
      !accumulate && op != Binary::pow && !is_any_floating(a.dtype()), "[{}] takes {}, got {}",
      name, op == Binary::pow || accumulate ? "f32 or f64" : "f32, f64 or integers", a.dtype());
  backend.indexed().combine_integers(op, a, b, out);
}

namespace {

void repeat(std::string_view name, const Tensor& x, const Tensor& out, bool accumulate,
            double alpha) {
  check_floating(name, x);
  Backend& backend = backend_of(x.device());
  if (!is_16_bit(x.dtype())) return backend.broadcast_to(x, out, accumulate, alpha);
  in_f32(x, out, accumulate, [&](const Tensor& from, const Tensor& to) {
    backend.broadcast_to(from, to, accumulate, alpha);
  });
}

}  // namespace

void scale(double alpha, const Tensor& x, const Tensor& out, bool accumulate) {
  check_defined("scale", "x", x);
  check_alike("scale", "out", out, x);
  repeat("scale", x, out, accumulate, alpha);
}

void broadcast_to(const Tensor& x, const Tensor& out, bool accumulate, double alpha) {
  check_defined("broadcast_to", "x", x);
  check_beside("broadcast_to", "out", out, x.dtype(), x);
  check_shape("broadcast_to", "out", out, Shape::broadcast("broadcast_to", x.shape(), out.shape()));
  repeat("broadcast_to", x, out, accumulate, alpha);
}

void cast(const Tensor& x, const Tensor& out) {
  check_defined("cast", "x", x);
  check_defined("cast", "out", out);
  check_beside("cast", "out", out, out.dtype(), x);
  check_shape("cast", "out", out, x.shape());
  Backend& backend = backend_of(x.device());
  if (is_any_floating(x.dtype()) && is_any_floating(out.dtype())) return backend.cast(x, out);
  for (const Tensor* side : {&x, &out})
    check<DTypeError>(size_of(side->dtype()) != 2,
                      "[cast] from {} to {}: between 16-bit types and integers go by f32",
                      x.dtype(), out.dtype());
  backend.indexed().convert(x, out);
}

Shape transposed(const Shape& shape) {
  const int rank = shape.rank();
  check<ShapeError>(rank >= 2, "[transpose] expected at least 2 dimensions, got shape {}", shape);
  return shape.with(rank - 2, rank, {shape[-1], shape[-2]});
}

void transpose(const Tensor& x, const Tensor& out) {
  check_defined("transpose", "x", x);
  check_beside("transpose", "out", out, x.dtype(), x);
  check_shape("transpose", "out", out, transposed(x.shape()));
  backend_of(x.device()).transpose(x, out);
}

}  // namespace lockstep::kernels
