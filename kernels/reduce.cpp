#include "lockstep/kernels/reduce.h"

#include "lockstep/kernels/backend/backend.h"
#include "lockstep/kernels/backend/in_f32.h"
#include "lockstep/kernels/broadcast.h"
#include "lockstep/kernels/checks.h"

namespace lockstep::kernels {
namespace {

void check_sum(std::string_view operation, const Tensor& x, const Tensor& out) {
  check_defined(operation, "x", x);
  check_floating(operation, x);
  check_beside(operation, "out", out, x.dtype(), x);
}

void check_broadcasts(std::string_view operation, const Tensor& x, const Tensor& out) {
  check<ShapeError>(Shape::broadcast(operation, out.shape(), x.shape()) == x.shape(),
                    "[{}] out of shape {} does not broadcast to x of shape {}", operation,
                    out.shape(), x.shape());
}

}  // namespace

void sum(const Tensor& x, const Tensor& out, bool accumulate, double divisor) {
  check_sum("sum", x, out);
  check_scalar("sum", "out", out, x);
  if (is_16_bit(x.dtype()))
    return in_f32(x, out, accumulate, [&](const Tensor& from, const Tensor& to) {
      sum(from, to, accumulate, divisor);
    });
  backend_of(x.device()).sum(x, out, accumulate, divisor);
}

void sum_rows(const Tensor& x, const Tensor& out, bool accumulate, double divisor) {
  check_sum("sum_rows", x, out);
  if (is_16_bit(x.dtype()))
    return in_f32(x, out, accumulate, [&](const Tensor& from, const Tensor& to) {
      sum_rows(from, to, accumulate, divisor);
    });
  check_rank("sum_rows", "x", x, 2);
  check_shape("sum_rows", "out", out, {x.size(1)});
  backend_of(x.device()).sum_rows(x, out, accumulate, divisor);
}

void sum_cols(const Tensor& x, const Tensor& out, bool accumulate, double divisor) {
  check_sum("sum_cols", x, out);
  check_differentiable("sum_cols", x);
  check_rank("sum_cols", "x", x, 2);
  check_shape("sum_cols", "out", out, {x.size(0)});
  backend_of(x.device()).sum_cols(x, out, accumulate, divisor);
}

void sum_to(const Tensor& x, const Tensor& out, bool accumulate, double divisor) {
  check_sum("sum_to", x, out);
  if (is_16_bit(x.dtype()))
    return in_f32(x, out, accumulate, [&](const Tensor& from, const Tensor& to) {
      sum_to(from, to, accumulate, divisor);
    });
  check_broadcasts("sum_to", x, out);
  const StridePlan plan = broadcast_plan(out.shape(), x.shape(), x.shape());
  const std::int64_t inner = plan.stride_a[0], outer = plan.rank == 2 ? plan.stride_a[1] : -1;
  const Tensor from = x.detach(), to = out.detach();  // handles that may be viewed in another shape
  Backend& backend = backend_of(x.device());
  if (x.numel() == out.numel())
    return backend.broadcast_to(from.view(out.shape()), out, accumulate, 1 / divisor);
  // A single row must have the bits that it has beside others.
  const bool one_row = x.rank() > 1 && out.rank() == x.rank() && x.size(0) == 1;
  if (plan.rank == 1 && one_row)
    return backend.sum_cols(from.view({1, x.numel()}), to.view({1}), accumulate, divisor);
  if (plan.rank == 1) return backend.sum(x, out, accumulate, divisor);
  const Shape matrix{plan.sizes[1], plan.sizes[0]};
  if (inner == 1 && outer == 0)
    return backend.sum_rows(from.view(matrix), to.view({plan.sizes[0]}), accumulate, divisor);
  if (inner == 0 && outer == 1)
    return backend.sum_cols(from.view(matrix), to.view({plan.sizes[1]}), accumulate, divisor);
  if (x.numel() > 0) return backend.sum_to(x, out, accumulate, divisor);
  if (!accumulate) out.fill_zero();
}

void norm(const Tensor& x, const Tensor& out) {
  check_sum("norm", x, out);
  check_differentiable("norm", x);
  check_broadcasts("norm", x, out);
  if (x.numel() == 0) return out.fill_zero();
  backend_of(x.device()).norm(x, out);
}

namespace {

void find_extreme(std::string_view operation, const Tensor& x, int dim, bool smallest,
                  const Tensor& out) {
  check_defined(operation, "x", x);
  check_differentiable(operation, x);
  check_beside(operation, "out", out, DType::i64, x);
  check<ShapeError>(dim >= -x.rank() && dim < x.rank() && x.size(dim) > 0,
                    "[{}] x has no dimension {} to search: {}", operation, dim, x.shape());
  const int d = dim < 0 ? dim + x.rank() : dim;
  check_shape(operation, "out", out, x.shape().with(d, d + 1, {}));
  if (x.numel() == 0) return;
  std::int64_t inner = 1;
  for (int i = d + 1; i < x.rank(); ++i) inner *= x.size(i);
  const std::int64_t n = x.size(d);
  backend_of(x.device())
      .argmax(x.detach().view({x.numel() / (n * inner), n, inner}), smallest, out);
}

}  // namespace

void argmax(const Tensor& x, const Tensor& out, int dim) {
  find_extreme("argmax", x, dim, false, out);
}
void argmin(const Tensor& x, const Tensor& out, int dim) {
  find_extreme("argmin", x, dim, true, out);
}

void find_nonfinite(const Tensor& x, const Tensor& flag) {
  check_defined("find_nonfinite", "x", x);
  check_differentiable("find_nonfinite", x);
  check_beside("find_nonfinite", "flag", flag, DType::i32, x);
  check<ShapeError>(flag.numel() == 1, "[find_nonfinite] flag: expected one element, got shape {}",
                    flag.shape());
  backend_of(x.device()).find_nonfinite(x, flag);
}

bool all_finite(const Tensor& x) {
  check_defined("all_finite", "x", x);
  const Tensor flag = Tensor::zeros({1}, DType::i32, x.device());
  find_nonfinite(x, flag);
  return flag.item() == 0;
}

}  // namespace lockstep::kernels
