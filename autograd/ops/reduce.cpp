#include "lockstep/kernels/reduce.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/ops/choices.h"
#include "lockstep/autograd/ops/in_f32.h"
#include "lockstep/autograd/ops/indices.h"
#include "lockstep/autograd/ops/reductions.h"
#include "lockstep/autograd/ops/shapes.h"
#include "lockstep/autograd/rows.h"
#include "lockstep/autograd/saved_tensor.h"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/indexed.h"
#include "lockstep/kernels/loss.h"

namespace lockstep {

int dimension(std::string_view operation, const Shape& shape, int dim) {
  check<ShapeError>(dim >= -shape.rank() && dim < shape.rank(),
                    "[{}] dimension {} of a tensor of shape {}", operation, dim, shape);
  return dim < 0 ? dim + shape.rank() : dim;
}

unsigned Dims::mask(std::string_view operation, const Shape& shape) const {
  if (all_) return (1u << shape.rank()) - 1;
  unsigned result = 0;
  for (const int dim : dims_) {
    const unsigned bit = 1u << dimension(operation, shape, dim);
    check<ShapeError>((result & bit) == 0, "[{}] dimension {} is named twice", operation, dim);
    result |= bit;
  }
  return result;
}

namespace {

struct Reduced {
  Shape kept;   // the reduced dimensions are 1
  Shape shape;  // of the result
  std::int64_t count = 1;
};

Reduced reduced(const char* name, const Shape& shape, const Dims& dims, KeepDim keep) {
  const unsigned mask = dims.mask(name, shape);
  Reduced result{.kept = shape, .shape = shape};
  for (int d = shape.rank() - 1; d >= 0; --d) {
    if ((mask >> d & 1) == 0) continue;
    result.count *= shape[d];
    result.kept = result.kept.with(d, d + 1, {1});
    result.shape = keep == KeepDim::yes ? result.kept : result.shape.with(d, d + 1, {});
  }
  return result;
}

// Of a reduction along the dimensions of `mask`.
Operand rows_of(const Tensor& x, unsigned mask) { return (mask & 1) != 0 ? shared(x) : apart(x); }

Tensor sums_to(const Tensor& x, const Shape& kept, double divisor) {
  const Tensor y = Tensor::empty(kept, x.dtype(), x.device());
  kernels::sum_to(x, y, false, divisor);
  return y;
}

// The sum, or the mean.
Tensor scaled_sum(const char* name, const Tensor& x, const Dims& dims, KeepDim keep, bool mean) {
  check_defined(name, {{"x", x}});
  visit_any_floating(name, x.dtype(), [](auto) {});
  if (is_16_bit(x.dtype())) return in_f32(scaled_sum, name, x, dims, keep, mean);
  const Reduced to = reduced(name, x.shape(), dims, keep);
  const auto divisor_of = [mean](std::int64_t count) {
    return mean ? static_cast<double>(std::max<std::int64_t>(count, 1)) : 1.0;
  };
  if (to.shape.rank() > 0) {
    const double divisor = divisor_of(to.count);
    return record(name, sums_to(x, to.kept, divisor).view(to.shape),
                  {rows_of(x, dims.mask(name, x.shape()))},
                  [kept = to.kept, divisor](Gradients& g) {
                    const auto dx = g.into(0);
                    kernels::broadcast_to(g.output().detach().view(kept), dx.tensor, dx.accumulate,
                                          1 / divisor);
                  });
  }
  return record_loss(
      name, mean ? LossKind::mean : LossKind::sum, {apart(x)},
      [&](const RowRange& rows, const Tensor& out) {
        const Tensor part = rows.of(x);
        kernels::sum(part, out, false, divisor_of(part.numel()));
      },
      [divisor_of](Gradients& g) {
        const auto dx = g.into(0);
        each_loss(g, rows_in(dx.tensor), [&](const RowRange& rows, const Tensor& dy) {
          const Tensor part = rows.of(dx.tensor);
          kernels::broadcast_to(dy, part, dx.accumulate, 1 / divisor_of(part.numel()));
        });
      });
}

// (outer, n, inner) with the dimensions of `mask` as the one in the middle. If they are not
// neighbours, they are moved to the end.
Tensor reduced_middle(const Tensor& x, unsigned mask) {
  std::vector<int> order;
  std::int64_t n = 1, inner = 1;
  for (int d = 0; d < x.rank(); ++d)
    if ((mask >> d & 1) == 0) order.push_back(d);
  for (int d = 0; d < x.rank(); ++d)
    if ((mask >> d & 1) != 0) order.push_back(d), n *= x.size(d);
  const int last = static_cast<int>(std::bit_width(mask));  // behind the last of them
  const bool neighbours = std::has_single_bit((mask >> std::countr_zero(mask)) + 1);
  for (int d = last; neighbours && d < x.rank(); ++d) inner *= x.size(d);
  const std::int64_t around = std::max<std::int64_t>(n * inner, 1);
  return (neighbours ? x : permute(x, order)).view({x.numel() / around, n, inner});
}

Shape without(const Shape& shape, unsigned mask) {
  Shape result = shape;
  for (int d = shape.rank() - 1; d >= 0; --d)
    if ((mask >> d & 1) != 0) result = result.with(d, d + 1, {});
  return result;
}

enum class Which : bool { largest, smallest };

// Where the largest along the dimensions of `mask` are; integers are compared as f64.
Tensor places_of(const char* name, const Tensor& x, unsigned mask, Which which) {
  check_defined(name, {{"x", x}});
  const Tensor rows = reduced_middle(
      is_differentiable(x.dtype()) ? x.detach() : cast(x.detach(), DType::f64), mask);
  check<ShapeError>(rows.size(1) > 0, "[{}] of nothing: shape {}", name, x.shape());
  const Tensor at = Tensor::empty({rows.size(0), rows.size(2)}, DType::i64, x.device());
  if (which == Which::largest)
    kernels::argmax(rows, at, 1);
  else
    kernels::argmin(rows, at, 1);
  return keep_rows(name, at.view(without(x.shape(), mask)), {rows_of(x, mask)});
}

Extreme extreme(const char* name, const Tensor& x, int dim, Which which) {
  check_defined(name, {{"x", x}});
  const int d = dimension(name, x.shape(), dim);
  const Tensor at = places_of(name, x, 1u << d, which);
  return {squeeze(gather(x, d, unsqueeze(at, d)), d), at};
}

Tensor extremes(const char* name, const Tensor& x, const Dims& dims, KeepDim keep, Which which) {
  check_defined(name, {{"x", x}});
  if (is_16_bit(x.dtype())) return in_f32(extremes, name, x, dims, keep, which);
  const Reduced to = reduced(name, x.shape(), dims, keep);
  const unsigned mask = dims.mask(name, x.shape());
  if (mask == 0) return reshape(x, x.shape());
  const Tensor rows = reduced_middle(x.detach(), mask);
  const Tensor at = places_of(name, x, mask, which);
  const Tensor y = gather(rows, 1, at.view({rows.size(0), 1, rows.size(2)})).view(to.kept);
  return record(name, y.view(to.shape), {rows_of(x, mask)},
                [x = SavedTensor(x), y = SavedTensor(y)](Gradients& g) {
                  const Tensor equal = cast((*x == *y) | isnan(*x), x->dtype());  // NaN is largest
                  const Tensor share = Tensor::empty(y.shape(), y->dtype(), y->device());
                  kernels::sum_to(equal, share);
                  kernels::binary(kernels::Binary::div, g.output().detach().view(y.shape()), share,
                                  share);
                  const auto dx = g.into(0);
                  kernels::binary(kernels::Binary::mul, equal, share, dx.tensor, dx.accumulate);
                });
}

// x minus its mean. The mean of what is left is what rounding the first one has left: far from 0 it
// can be as large as the deviations.
Tensor centered(const Tensor& x, const Dims& dims) {
  const Tensor near = x - mean(x, dims, keepdim);
  return near - mean(near, dims, keepdim);
}

// y = softmax(x) by rows: dx = y (dy - sum(y dy))
Tensor softmax_rows(const Tensor& x) {
  if (is_16_bit(x.dtype())) return in_f32(softmax_rows, x);
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  kernels::softmax(x, y);
  return record("softmax", y, {apart(x)}, [y = SavedTensor(y)](Gradients& g) {
    using kernels::Binary;
    const Tensor weighted = Tensor::empty(y.shape(), y->dtype(), y->device());
    const Tensor sums = Tensor::empty({y->size(0), 1}, y->dtype(), y->device());
    kernels::binary(Binary::mul, *y, g.output(), weighted);
    kernels::sum_to(weighted, sums);
    const Tensor centered = Tensor::empty(y.shape(), y->dtype(), y->device());
    kernels::binary(Binary::sub, g.output(), sums, centered);
    const auto dx = g.into(0);
    kernels::binary(Binary::mul, *y, centered, dx.tensor, dx.accumulate);
  });
}

// y = log(sum(exp(x))) by rows: dx = dy softmax(x), which is better than exp(x - y) of a rounded y
Tensor logsumexp_rows(const Tensor& x) {
  const Tensor y = Tensor::empty({x.size(0)}, x.dtype(), x.device());
  kernels::logsumexp(x, y);
  return record("logsumexp", y, {apart(x)}, [x = SavedTensor(x)](Gradients& g) {
    const Tensor share = Tensor::empty(x.shape(), x->dtype(), x->device());
    kernels::softmax(*x, share);
    const auto dx = g.into(0);
    kernels::binary(kernels::Binary::mul, share, g.output().detach().view({x->size(0), 1}),
                    dx.tensor, dx.accumulate);
  });
}

// rows(x) along any dimension: that dimension is made the last.
template <class F>
Tensor along(const char* name, const Tensor& x, int dim, F rows) {
  check_defined(name, {{"x", x}});
  const int d = dimension(name, x.shape(), dim), last = x.rank() - 1;
  refuse_mixing(name, {rows_of(x, 1u << d)});
  const Tensor turned = d == last ? x : transpose(x, d, last);
  const std::int64_t columns = x.size(d);
  const std::int64_t n = x.numel() / std::max<std::int64_t>(columns, 1);
  const Tensor y = reshape(rows(reshape(turned, {columns == 0 ? 0 : n, columns})), turned.shape());
  return d == last ? y : transpose(y, d, last);
}

}  // namespace

Tensor sum(const Tensor& x, const Dims& dims, KeepDim keep) {
  check_defined("sum", {{"x", x}});
  if (!is_any_floating(x.dtype())) return cast(sum(cast(x, DType::f64), dims, keep), DType::i64);
  return scaled_sum("sum", x, dims, keep, false);
}

Tensor mean(const Tensor& x, const Dims& dims, KeepDim keep) {
  return scaled_sum("mean", x, dims, keep, true);
}

Tensor var(const Tensor& x, const Dims& dims, VarianceOptions options) {
  check_defined("var", {{"x", x}});
  if (is_16_bit(x.dtype())) return in_f32(var, x, dims, options);
  const Reduced to = reduced("var", x.shape(), dims, KeepDim::no);
  const Tensor squares =
      sum(square(centered(x, dims)), dims, options.keepdim ? KeepDim::yes : KeepDim::no);
  const double divisor = static_cast<double>(to.count) - options.correction;
  return squares / std::max(divisor, 0.0);
}

Tensor stdev(const Tensor& x, const Dims& dims, VarianceOptions options) {
  check_defined("stdev", {{"x", x}});
  if (is_16_bit(x.dtype())) return in_f32(stdev, x, dims, options);
  const auto count = static_cast<double>(reduced("stdev", x.shape(), dims, KeepDim::no).count);
  if (count <= options.correction) return sqrt(var(x, dims, options));  // NaN, with its gradient
  const Tensor length =  // not the root of var: the gradient at 0 is 0
      norm(centered(x, dims), dims, options.keepdim ? KeepDim::yes : KeepDim::no);
  return length / std::sqrt(std::max(count - options.correction, 0.0));
}

// y = |x|: dx = dy x / y, and 0 where y is 0
Tensor norm(const Tensor& x, const Dims& dims, KeepDim keep) {
  check_defined("norm", {{"x", x}});
  if (is_16_bit(x.dtype())) return in_f32(norm, x, dims, keep);
  const Reduced to = reduced("norm", x.shape(), dims, keep);
  const Tensor y = Tensor::empty(to.kept, x.dtype(), x.device());
  kernels::norm(x, y);
  return record("norm", y.view(to.shape), {rows_of(x, dims.mask("norm", x.shape()))},
                [x = SavedTensor(x), y = SavedTensor(y)](Gradients& g) {
                  const Tensor direction = *x / where(*y == 0, 1.0, *y);  // dy / y may be infinite
                  const auto dx = g.into(0);
                  kernels::binary(kernels::Binary::mul, direction,
                                  g.output().detach().view(y.shape()), dx.tensor, dx.accumulate);
                });
}

Tensor amax(const Tensor& x, const Dims& dims, KeepDim keep) {
  return extremes("amax", x, dims, keep, Which::largest);
}
Tensor amin(const Tensor& x, const Dims& dims, KeepDim keep) {
  return extremes("amin", x, dims, keep, Which::smallest);
}
Tensor max(const Tensor& x) { return extremes("max", x, Dims::all(), KeepDim::no, Which::largest); }
Tensor min(const Tensor& x) {
  return extremes("min", x, Dims::all(), KeepDim::no, Which::smallest);
}
Extreme max(const Tensor& x, int dim) { return extreme("max", x, dim, Which::largest); }
Extreme min(const Tensor& x, int dim) { return extreme("min", x, dim, Which::smallest); }
Tensor argmax(const Tensor& x, int dim) {
  check_defined("argmax", {{"x", x}});
  return places_of("argmax", x, 1u << dimension("argmax", x.shape(), dim), Which::largest);
}
Tensor argmin(const Tensor& x, int dim) {
  check_defined("argmin", {{"x", x}});
  return places_of("argmin", x, 1u << dimension("argmin", x.shape(), dim), Which::smallest);
}

Tensor argmax(const Tensor& x) {
  check_defined("argmax", {{"x", x}});
  return argmax(flatten(x), 0);
}
Tensor argmin(const Tensor& x) {
  check_defined("argmin", {{"x", x}});
  return argmin(flatten(x), 0);
}

Tensor softmax(const Tensor& x, int dim) { return along("softmax", x, dim, softmax_rows); }
Tensor log_softmax(const Tensor& x, int dim) {
  return along("log_softmax", x, dim, [](const Tensor& rows) { return log_softmax(rows); });
}

Tensor logsumexp(const Tensor& x, int dim, KeepDim keep) {
  check_defined("logsumexp", {{"x", x}});
  if (is_16_bit(x.dtype())) return in_f32(logsumexp, x, dim, keep);
  const int d = dimension("logsumexp", x.shape(), dim), last = x.rank() - 1;
  refuse_mixing("logsumexp", {rows_of(x, 1u << d)});
  const Tensor turned = d == last ? x : transpose(x, d, last);
  const Shape kept = turned.shape().with(last, last + 1, {1});
  const Tensor y = reshape(logsumexp_rows(reshape(turned, {kept.numel(), x.size(d)})), kept);
  const Tensor back = d == last ? y : transpose(y, d, last);
  return keep == KeepDim::yes ? back : squeeze(back, d);
}

Tensor cumsum(const Tensor& x, int dim) {
  check_defined("cumsum", {{"x", x}});
  if (is_16_bit(x.dtype())) return in_f32(cumsum, x, dim);
  if (x.dtype() == DType::u8 || x.dtype() == DType::i32) return cumsum(cast(x, DType::i64), dim);
  const int d = dimension("cumsum", x.shape(), dim);
  std::int64_t outer = 1, inner = 1;
  for (int i = 0; i < d; ++i) outer *= x.size(i);
  for (int i = d + 1; i < x.rank(); ++i) inner *= x.size(i);
  const auto added_up = [outer, n = x.size(d), inner](const Tensor& from, bool reverse) {
    const Tensor to = Tensor::empty(from.shape(), from.dtype(), from.device());
    kernels::cumulative_sum(outer, n, inner, reverse, from, to);
    return to;
  };
  return record("cumsum", added_up(x.detach(), false), {rows_of(x, 1u << d)},
                [added_up](Gradients& g) { g.pass(0, added_up(g.output(), true)); });
}

Tensor any(const Tensor& mask) {
  check_defined("any", {{"mask", mask}});
  return sum(mask != 0, Dims::all()) > 0;
}
Tensor all(const Tensor& mask) {
  check_defined("all", {{"mask", mask}});
  return sum(mask == 0, Dims::all()) == 0;
}

}  // namespace lockstep
