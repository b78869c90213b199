#include "lockstep/kernels/indexed.h"

#include <algorithm>
#include <span>

#include "lockstep/kernels/backend/backend.h"
#include "lockstep/kernels/backend/in_f32.h"
#include "lockstep/kernels/checks.h"

namespace lockstep::kernels {
namespace {

void check_indices(std::string_view operation, const Taken& what, const Tensor& index,
                   const Tensor& taken) {
  check_beside(operation, "index", index, DType::i64, taken);
  const std::int64_t wanted = what.count * (what.each ? what.outer * what.inner : 1);
  check<ShapeError>(index.numel() == wanted, "[{}] index: expected {} elements, got shape {}",
                    operation, wanted, index.shape());
  if (index.device().kind != Device::Kind::cpu)
    return;  // there, out-of-range indices are told late
  const std::span<const std::int64_t> all = index.span<std::int64_t>();
  const auto beyond = [n = static_cast<std::uint64_t>(what.n)](std::int64_t i) {
    return static_cast<std::uint64_t>(i) >= n;  // negative ones, too
  };
  int bad = 0;  // of all together: the compiler vectorizes
  for (const std::int64_t i : all) bad |= beyond(i);
  if (bad)
    fail<DataError>("[{}] index {} of a dimension of {}", operation,
                    *std::ranges::find_if(all, beyond), what.n);
}

void check_rows(std::string_view operation, std::string_view name, const Taken& what,
                std::int64_t rows, const Tensor& tensor) {
  check<ShapeError>(tensor.numel() == what.outer * rows * what.inner,
                    "[{}] {}: expected {} x {} x {} elements, got shape {}", operation, name,
                    what.outer, rows, what.inner, tensor.shape());
}

}  // namespace

void compare(Compare op, const Tensor& a, const Tensor& b, const Tensor& out) {
  check_defined("compare", "a", a);
  check_beside("compare", "b", b, a.dtype(), a);
  check_beside("compare", "out", out, DType::u8, a);
  check_shape("compare", "out", out, Shape::broadcast("compare", a.shape(), b.shape()));
  backend_of(a.device()).indexed().compare(op, a, b, out);
}

void masked_copy(const Tensor& mask, const Tensor& x, const Tensor& out) {
  check_defined("masked_copy", "x", x);
  check_beside("masked_copy", "mask", mask, DType::u8, x);
  check_beside("masked_copy", "out", out, x.dtype(), x);
  for (const Tensor* operand : {&mask, &x})
    check_shape("masked_copy", "out", out,
                Shape::broadcast("masked_copy", operand->shape(), out.shape()));
  backend_of(x.device()).indexed().masked_copy(mask, x, out);
}

void copy_window(const Shape& shape, const Tensor& x, const Window& from, const Tensor& out,
                 const Window& to, bool accumulate) {
  check_defined("copy_window", "x", x);
  check_beside("copy_window", "out", out, x.dtype(), x);
  if (accumulate) check_floating("copy_window", x);
  if (accumulate && is_16_bit(x.dtype()))
    return in_f32(x, out, true, [&](const Tensor& wide, const Tensor& sum) {
      copy_window(shape, wide, from, sum, to, true);
    });
  const auto check_inside = [&](const Window& window, const Tensor& tensor) {
    std::int64_t low = window.first, high = window.first;
    for (int d = 0; d < shape.rank(); ++d) {
      const std::int64_t reach = window.strides[static_cast<std::size_t>(d)] * (shape[d] - 1);
      (reach < 0 ? low : high) += reach;
    }
    check<ShapeError>(
        low >= 0 && high < tensor.numel(),
        "[copy_window] a window of shape {} shows elements {} to {} of a tensor of {}", shape, low,
        high, tensor.shape());
  };
  if (shape.numel() == 0) return;
  check_inside(from, x);
  check_inside(to, out);
  backend_of(x.device()).indexed().copy_window(shape, x, from, out, to, accumulate);
}

void take(const Taken& what, const Tensor& x, const Tensor& index, const Tensor& out) {
  check_defined(what.operation, "x", x);
  check_beside(what.operation, "out", out, x.dtype(), x);
  check_rows(what.operation, "x", what, what.n, x);
  check_rows(what.operation, "out", what, what.count, out);
  check_indices(what.operation, what, index, x);
  check<DataError>(what.n > 0 || out.numel() == 0, "[{}] {} indices of a dimension of 0",
                   what.operation, what.count);
  backend_of(x.device()).indexed().take(what, x, index, out);
}

void add_taken(const Taken& what, const Tensor& dy, const Tensor& index, const Tensor& dx,
               bool accumulate) {
  check_defined("add_taken", "dy", dy);
  check_floating("add_taken", dy);
  check_beside("add_taken", "dx", dx, dy.dtype(), dy);
  if (is_16_bit(dy.dtype()))
    return in_f32(dy, dx, accumulate, [&](const Tensor& from, const Tensor& to) {
      add_taken(what, from, index, to, accumulate);
    });
  check_rows("add_taken", "dy", what, what.count, dy);
  check_rows("add_taken", "dx", what, what.n, dx);
  check_indices("add_taken", what, index, dy);
  check<DataError>(what.n > 0 || dy.numel() == 0, "[add_taken] {} indices of a dimension of 0",
                   what.count);
  if (dy.numel() > 0)
    backend_of(dy.device()).indexed().add_taken(what, dy, index, dx, accumulate);
  else if (!accumulate)
    dx.fill_zero();
}

void cumulative_sum(std::int64_t outer, std::int64_t n, std::int64_t inner, bool reverse,
                    const Tensor& x, const Tensor& out) {
  check_defined("cumulative_sum", "x", x);
  check_alike("cumulative_sum", "out", out, x);
  check_rows("cumulative_sum", "x", {.outer = outer, .n = n, .inner = inner}, n, x);
  backend_of(x.device()).indexed().cumulative_sum(outer, n, inner, reverse, x, out);
}

}  // namespace lockstep::kernels
