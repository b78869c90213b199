// What shows other elements of a tensor, or the same in another order.
#include <algorithm>
#include <numeric>

#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/ops/in_f32.h"
#include "lockstep/autograd/ops/shapes.h"
#include "lockstep/autograd/rows.h"
#include "lockstep/kernels/indexed.h"

namespace lockstep {
namespace {

using kernels::whole;
using kernels::Window;

std::int64_t& stride(Window& window, int dim) {
  return window.strides[static_cast<std::size_t>(dim)];
}

// y = a window of x, which shows no element twice. dx = dy there, 0 elsewhere.
Tensor shown(const char* name, const Tensor& x, bool rows_stay, const Shape& shape,
             const Window& window) {
  const Tensor y = Tensor::empty(shape, x.dtype(), x.device());
  kernels::copy_window(shape, x.detach(), window, y, whole(shape));
  return record(name, y, {rows_stay ? apart(x) : shared(x)}, [shape, window](Gradients& g) {
    const auto dx = g.into(0);
    if (!dx.accumulate && shape.numel() < dx.tensor.numel()) dx.tensor.fill_zero();
    kernels::copy_window(shape, g.output(), whole(shape), dx.tensor, window, dx.accumulate);
  });
}

void check_all_defined(const char* name, const std::vector<Tensor>& tensors) {
  for (const Tensor& tensor : tensors)
    check<StateError>(tensor.defined(), "[{}] tensors[{}] is undefined", name,
                      &tensor - tensors.data());
}

}  // namespace

Tensor permute(const Tensor& x, const std::vector<int>& dims) {
  check_defined("permute", {{"x", x}});
  check<ShapeError>(static_cast<int>(dims.size()) == x.rank(),
                    "[permute] {} dimensions are named for a tensor of shape {}", dims.size(),
                    x.shape());
  const Window straight = whole(x.shape());
  Window window;
  std::vector<std::int64_t> sizes;
  unsigned seen = 0;
  for (const int dim : dims) {
    const int d = dimension("permute", x.shape(), dim);
    check<ShapeError>((seen >> d & 1) == 0, "[permute] dimension {} is named twice", dim);
    seen |= 1u << d;
    stride(window, static_cast<int>(sizes.size())) = straight.strides[static_cast<std::size_t>(d)];
    sizes.push_back(x.size(d));
  }
  return shown("permute", x, dims.empty() || dimension("permute", x.shape(), dims[0]) == 0,
               Shape(sizes), window);
}

Tensor transpose(const Tensor& x, int a, int b) {
  check_defined("transpose", {{"x", x}});
  std::vector<int> dims(static_cast<std::size_t>(x.rank()));
  std::iota(dims.begin(), dims.end(), 0);
  const auto place = [&](int dim) {
    return static_cast<std::size_t>(dimension("transpose", x.shape(), dim));
  };
  const std::size_t i = place(a), j = place(b);
  if (std::min(i, j) + 2 == dims.size() && i != j) return transpose(x);
  std::swap(dims[i], dims[j]);
  return permute(x, dims);
}

Tensor flatten(const Tensor& x, int first) {
  check_defined("flatten", {{"x", x}});
  const int d = x.rank() == 0 ? 0 : dimension("flatten", x.shape(), first);
  return reshape(x, x.shape().with(d, x.rank(), {x.shape().with(0, d, {}).numel()}));
}

Tensor unsqueeze(const Tensor& x, int dim) {
  check_defined("unsqueeze", {{"x", x}});
  check<ShapeError>(dim >= -x.rank() - 1 && dim <= x.rank(),
                    "[unsqueeze] dimension {} of a tensor of shape {}", dim, x.shape());
  const int d = dim < 0 ? dim + x.rank() + 1 : dim;
  const Shape shape = x.shape().with(d, d, {1});
  if (d > 0 || !x.row_origin().is_samples()) return reshape(x, shape);
  refuse_mixing("unsqueeze", {shared(x)});  // also of one sample
  return keep_rows("unsqueeze", x.clone().view(shape), {shared(x)});
}

Tensor squeeze(const Tensor& x, int dim) {
  check_defined("squeeze", {{"x", x}});
  const int d = dimension("squeeze", x.shape(), dim);
  check<ShapeError>(x.size(d) == 1, "[squeeze] dimension {} of shape {} is not 1", dim, x.shape());
  return reshape(x, x.shape().with(d, d + 1, {}));
}

Tensor squeeze(const Tensor& x) {
  check_defined("squeeze", {{"x", x}});
  std::vector<std::int64_t> sizes;
  std::ranges::copy_if(x.shape(), std::back_inserter(sizes), [](std::int64_t n) { return n != 1; });
  return reshape(x, Shape(sizes));
}

Tensor flip(const Tensor& x, const Dims& dims) {
  check_defined("flip", {{"x", x}});
  const unsigned mask = dims.mask("flip", x.shape());
  Window window = whole(x.shape());
  for (int d = 0; d < x.rank() && x.numel() > 0; ++d)
    if ((mask >> d & 1) != 0) {
      window.first += stride(window, d) * (x.size(d) - 1);
      stride(window, d) = -stride(window, d);
    }
  return shown("flip", x, (mask & 1) == 0, x.shape(), window);
}

Tensor slice(const Tensor& x, int dim, std::int64_t begin, std::int64_t end) {
  check_defined("slice", {{"x", x}});
  const int d = dimension("slice", x.shape(), dim);
  const auto placed = [n = x.size(d)](std::int64_t i) {
    return std::clamp(i < 0 ? i + n : i, std::int64_t{0}, n);
  };
  const std::int64_t rows = std::max(placed(end) - placed(begin), std::int64_t{0});
  Window window = whole(x.shape());
  window.first = placed(begin) * stride(window, d);
  return shown("slice", x, d != 0, x.shape().with(d, d + 1, {rows}), window);
}

Tensor select(const Tensor& x, int dim, std::int64_t i) {
  check_defined("select", {{"x", x}});
  const int d = dimension("select", x.shape(), dim);
  const std::int64_t n = x.size(d);
  check<ShapeError>(i >= -n && i < n, "[select] row {} of dimension {} of shape {}", i, dim,
                    x.shape());
  const std::int64_t row = i < 0 ? i + n : i;
  return squeeze(slice(x, d, row, row + 1), d);
}

std::vector<Tensor> chunk(const Tensor& x, int parts, int dim) {
  check_defined("chunk", {{"x", x}});
  check<UsageError>(parts >= 1, "[chunk] into {} parts", parts);
  const std::int64_t n = x.size(dimension("chunk", x.shape(), dim));
  const std::int64_t rows = std::max((n + parts - 1) / parts, std::int64_t{1});
  std::vector<Tensor> result;
  for (std::int64_t begin = 0; begin < std::max(n, std::int64_t{1}); begin += rows)
    result.push_back(slice(x, dim, begin, begin + rows));
  // Of nothing there are as many parts as were asked for.
  while (n == 0 && static_cast<int>(result.size()) < parts) result.push_back(slice(x, dim, 0, 0));
  return result;
}

Tensor cat(const std::vector<Tensor>& tensors, int dim) {
  check<ShapeError>(!tensors.empty(), "[cat] of no tensors");
  check_all_defined("cat", tensors);
  const Tensor& first = tensors[0];
  const int d = dimension("cat", first.shape(), dim);
  std::int64_t rows = 0;
  for (const Tensor& tensor : tensors) {
    check<ShapeError>(tensor.rank() == first.rank() &&
                          tensor.shape() == first.shape().with(d, d + 1, {tensor.size(d)}),
                      "[cat] {} and {} differ beside dimension {}", first.shape(), tensor.shape(),
                      dim);
    check<DTypeError>(
        tensor.dtype() == first.dtype(),
        "[cat] tensors[0] is {}, but tensors[{}] is {}: cast(tensor, dtype) makes them "
        "alike",
        first.dtype(), &tensor - tensors.data(), tensor.dtype());
    rows += tensor.size(d);
  }
  const Tensor y =
      Tensor::empty(first.shape().with(d, d + 1, {rows}), first.dtype(), first.device());
  std::vector<Window> windows;
  std::vector<Shape> shapes;
  std::vector<Operand> operands;
  Window window = whole(y.shape());
  for (const Tensor& tensor : tensors) {
    kernels::copy_window(tensor.shape(), tensor.detach(), whole(tensor.shape()), y, window);
    windows.push_back(window);
    shapes.push_back(tensor.shape());
    operands.push_back(d == 0 ? shared(tensor) : apart(tensor));
    window.first += tensor.size(d) * stride(window, d);
  }
  return record("cat", y, std::span<const Operand>(operands),
                [windows = std::move(windows), shapes = std::move(shapes)](Gradients& g) {
                  for (std::size_t i = 0; i < shapes.size(); ++i)
                    if (const auto dx = g.into(static_cast<int>(i)))
                      kernels::copy_window(shapes[i], g.output(), windows[i], dx.tensor,
                                           whole(shapes[i]), dx.accumulate);
                });
}

Tensor stack(const std::vector<Tensor>& tensors, int dim) {
  check_all_defined("stack", tensors);
  std::vector<Tensor> wider;
  for (const Tensor& tensor : tensors) wider.push_back(unsqueeze(tensor, dim));
  return cat(wider, dim);
}

}  // namespace lockstep
