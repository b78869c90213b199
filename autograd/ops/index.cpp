#include <algorithm>

#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/ops/broadcasting.h"
#include "lockstep/autograd/ops/choices.h"
#include "lockstep/autograd/ops/in_f32.h"
#include "lockstep/autograd/ops/indices.h"
#include "lockstep/autograd/ops/shapes.h"
#include "lockstep/autograd/rows.h"
#include "lockstep/autograd/saved_tensor.h"
#include "lockstep/kernels/indexed.h"

namespace lockstep {
namespace {

using kernels::Taken;

Taken along(const char* name, const Tensor& x, int dim, std::int64_t count, bool each) {
  Taken what{.n = x.size(dim), .count = count, .each = each, .operation = name};
  for (int d = 0; d < dim; ++d) what.outer *= x.size(d);
  for (int d = dim + 1; d < x.rank(); ++d) what.inner *= x.size(d);
  return what;
}

// dx of rows that were taken from dimension 0 of x.
void add_rows_taken(Gradients& g, const Taken& what, const Tensor& index) {
  if (!g.needed(0)) return;
  const Tensor dy = g.output().detach().view({what.count, what.inner});
  const Tensor indices = index.detach().view(what.each ? dy.shape() : Shape{what.count});
  sum_rows(g, 0, what.count, [&](const RowRange& rows, const Gradients::Destination& dx) {
    Taken part = what;
    part.count = rows.end - rows.begin;
    kernels::add_taken(part, rows.of(dy), rows.of(indices), dx.tensor, dx.accumulate);
  });
}

// Of dimension `dim`.
Tensor taken(const Taken& what, int dim, const Tensor& x, const Tensor& index, const Shape& shape) {
  check_dtype(what.operation, {"index", index}, DType::i64);
  const Tensor y = Tensor::empty(shape, x.dtype(), x.device());
  kernels::take(what, x.detach(), index, y);
  const bool of_table = dim == 0;  // rows of a table: the indices are those of samples
  return record(
      what.operation, y,
      {of_table ? shared(x) : apart(x), of_table || what.each ? apart(index) : shared(index)},
      [what, of_table, index = SavedTensor(index)](Gradients& g) {
        if (of_table) return add_rows_taken(g, what, *index);
        const auto dx = g.into(0);
        kernels::add_taken(what, g.output(), *index, dx.tensor, dx.accumulate);
      });
}

}  // namespace

Tensor index_select(const Tensor& x, int dim, const Tensor& index) {
  check_defined("index_select", {{"x", x}, {"index", index}});
  const int d = dimension("index_select", x.shape(), dim);
  check<ShapeError>(index.rank() == 1,
                    "[index_select] indices of shape {}; one dimension is needed", index.shape());
  return taken(along("index_select", x, d, index.numel(), false), d, x, index,
               x.shape().with(d, d + 1, {index.numel()}));
}

Tensor embedding(const Tensor& table, const Tensor& index) {
  check_defined("embedding", {{"table", table}, {"index", index}});
  check<ShapeError>(table.rank() == 2, "[embedding] a table of shape {}; two dimensions are needed",
                    table.shape());
  return taken(along("embedding", table, 0, index.numel(), false), 0, table, index,
               index.shape().with(index.rank(), index.rank(), {table.size(1)}));
}

Tensor gather(const Tensor& x, int dim, const Tensor& index) {
  check_defined("gather", {{"x", x}, {"index", index}});
  const int d = dimension("gather", x.shape(), dim);
  check<ShapeError>(
      index.rank() == x.rank() && index.shape() == x.shape().with(d, d + 1, {index.size(d)}),
      "[gather] along dimension {}: indices of shape {} for a tensor of shape {}", dim,
      index.shape(), x.shape());
  return taken(along("gather", x, d, index.size(d), true), d, x, index, index.shape());
}

Tensor detail::positions(std::int64_t n, Device device) {
  constexpr std::int64_t row = 256;  // one thread adds them up
  if (device == Device{}) return Tensor::arange(n);
  const std::int64_t in_row = std::min(n, row);
  const Tensor first = cumsum(Tensor::ones({in_row}, DType::i64, device), 0) - 1.0;
  if (n <= row) return first;
  const Tensor begins = positions((n + row - 1) / row, device) * static_cast<double>(row);
  return flatten(unsqueeze(begins, 1) + first).slice(0, n);
}

Tensor one_hot(const Tensor& labels, std::int64_t classes) {
  check_defined("one_hot", {{"labels", labels}});
  check<DTypeError>(labels.dtype() == DType::i64, "[one_hot] takes i64 labels, got {}",
                    labels.dtype());
  const Tensor numbers = detail::positions(classes, labels.device());
  const Tensor checked = index_select(numbers, 0, flatten(labels)).view(labels.shape());
  return cast(unsqueeze(checked, labels.rank()) == numbers, DType::i64);
}

}  // namespace lockstep
