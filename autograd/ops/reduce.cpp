#include "lockstep/kernels/reduce.h"

#include <algorithm>
#include <cmath>
#include <limits>

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

Tensor sums_to(const Tensor& x, const Shape& kept, double factor) {
  const Tensor y = Tensor::empty(kept, x.dtype(), x.device());
  kernels::sum_to(x, y);
  if (factor != 1) kernels::scale(factor, y, y, false);
  return y;
}

// The sum, or the mean.
Tensor scaled_sum(const char* name, const Tensor& x, const Dims& dims, KeepDim keep, bool mean) {
  visit_any_floating(name, x.dtype(), [](auto) {});
  if (is_16_bit(x.dtype())) return in_f32(scaled_sum, name, x, dims, keep, mean);
  const Reduced to = reduced(name, x.shape(), dims, keep);
  const auto factor_of = [mean](std::int64_t count) {
    return !mean ? 1.0 : count > 0 ? 1.0 / static_cast<double>(count) : 0.0;
  };
  if (to.shape.rank() > 0) {
    const double factor = factor_of(to.count);
    return record(name, sums_to(x, to.kept, factor).view(to.shape),
                  {rows_of(x, dims.mask(name, x.shape()))}, [kept = to.kept, factor](Gradients& g) {
                    const auto dx = g.into(0);
                    kernels::broadcast_to(g.output().detach().view(kept), dx.tensor, dx.accumulate,
                                          factor);
                  });
  }
  return record_loss(
      name, mean ? LossKind::mean : LossKind::sum, {apart(x)},
      [&](const RowRange& rows, const Tensor& out) {
        const Tensor part = rows.of(x);
        kernels::sum(part, out, false, factor_of(part.numel()));
      },
      [factor_of](Gradients& g) {
        const auto dx = g.into(0);
        each_loss(g, rows_in(dx.tensor), [&](const RowRange& rows, const Tensor& dy) {
          const Tensor part = rows.of(dx.tensor);
          kernels::broadcast_to(dy, part, dx.accumulate, factor_of(part.numel()));
        });
      });
}

// The dimensions of `mask` moved to the end, as one.
Tensor reduced_last(const Tensor& x, unsigned mask) {
  std::vector<int> order;
  std::vector<std::int64_t> sizes;
  std::int64_t last = 1;
  for (int d = 0; d < x.rank(); ++d)
    if ((mask >> d & 1) == 0) order.push_back(d), sizes.push_back(x.size(d));
  for (int d = 0; d < x.rank(); ++d)
    if ((mask >> d & 1) != 0) order.push_back(d), last *= x.size(d);
  sizes.push_back(last);
  return (std::ranges::is_sorted(order) ? x : permute(x, order)).view(Shape(sizes));
}

// Where the largest of each row is; integers are compared as f64.
Tensor places_of_largest(const char* name, const Tensor& x, unsigned mask) {
  const Tensor floating = is_differentiable(x.dtype()) ? x.detach() : cast(x.detach(), DType::f64);
  const Tensor rows = reduced_last(floating, mask);
  check<ShapeError>(rows.size(-1) > 0, "[{}] of nothing: shape {}", name, x.shape());
  const int last = rows.rank() - 1;
  const Tensor at = Tensor::empty(rows.shape().with(last, last + 1, {}), DType::i64, x.device());
  if (rows.numel() > 0) kernels::argmax(rows, at);
  return keep_rows(name, at, {rows_of(x, mask)});
}

Tensor with_last_kept(const Tensor& at) { return unsqueeze(at, at.rank()); }

Extreme extreme(const char* name, const Tensor& x, const Tensor& compared, int dim) {
  const int d = dimension(name, x.shape(), dim);
  const Tensor at = places_of_largest(name, compared, 1u << d);
  return {squeeze(gather(x, d, unsqueeze(at, d)), d), at};
}

Tensor largest(const char* name, const Tensor& x, const Tensor& compared, const Dims& dims,
               KeepDim keep) {
  if (is_16_bit(x.dtype())) return in_f32(largest, name, x, compared, dims, keep);
  const Reduced to = reduced(name, x.shape(), dims, keep);
  const unsigned mask = dims.mask(name, x.shape());
  if (mask == 0) return reshape(x, x.shape());
  const Tensor at = places_of_largest(name, compared, mask);
  const Tensor rows = reduced_last(x.detach(), mask);
  const Tensor y = gather(rows, -1, with_last_kept(at)).view(to.kept);
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

Tensor opposite(const Tensor& x) {
  const Tensor floating = is_differentiable(x.dtype()) ? x.detach() : cast(x.detach(), DType::f64);
  return neg(floating);
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

// rows(x) along any dimension: that dimension is made the last.
template <class F>
Tensor along(const char* name, const Tensor& x, int dim, F rows) {
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
  if (!is_any_floating(x.dtype())) return cast(sum(cast(x, DType::f64), dims, keep), DType::i64);
  return scaled_sum("sum", x, dims, keep, false);
}

Tensor mean(const Tensor& x, const Dims& dims, KeepDim keep) {
  return scaled_sum("mean", x, dims, keep, true);
}

Tensor var(const Tensor& x, const Dims& dims, VarianceOptions options) {
  if (is_16_bit(x.dtype())) return in_f32(var, x, dims, options);
  const Reduced to = reduced("var", x.shape(), dims, KeepDim::no);
  const Tensor squares =
      sum(square(x - mean(x, dims, keepdim)), dims, options.keepdim ? KeepDim::yes : KeepDim::no);
  const double divisor = static_cast<double>(to.count) - options.correction;
  return squares / std::max(divisor, 0.0);
}

Tensor stdev(const Tensor& x, const Dims& dims, VarianceOptions options) {
  if (is_16_bit(x.dtype())) return in_f32(stdev, x, dims, options);
  const auto count = static_cast<double>(reduced("stdev", x.shape(), dims, KeepDim::no).count);
  if (count <= options.correction) return sqrt(var(x, dims, options));  // NaN, with its gradient
  const Tensor length =  // not the root of var: the gradient at 0 is 0
      norm(x - mean(x, dims, keepdim), dims, options.keepdim ? KeepDim::yes : KeepDim::no);
  return length / std::sqrt(std::max(count - options.correction, 0.0));
}

// y = |x|: dx = dy x / y, and 0 where y is 0
Tensor norm(const Tensor& x, const Dims& dims, KeepDim keep) {
  if (is_16_bit(x.dtype())) return in_f32(norm, x, dims, keep);
  const Reduced to = reduced("norm", x.shape(), dims, keep);
  const Tensor y = sqrt(sum(square(x.detach()), dims, keepdim));
  return record("norm", y.view(to.shape), {rows_of(x, dims.mask("norm", x.shape()))},
                [x = SavedTensor(x), y = SavedTensor(y)](Gradients& g) {
                  const Tensor direction =
                      where(*y == 0, 0.0, g.output().detach().view(y.shape()) / *y);
                  const auto dx = g.into(0);
                  kernels::binary(kernels::Binary::mul, *x, direction, dx.tensor, dx.accumulate);
                });
}

Tensor amax(const Tensor& x, const Dims& dims, KeepDim keep) {
  return largest("amax", x, x, dims, keep);
}
Tensor amin(const Tensor& x, const Dims& dims, KeepDim keep) {
  return largest("amin", x, opposite(x), dims, keep);
}
Tensor max(const Tensor& x) { return largest("max", x, x, Dims::all(), KeepDim::no); }
Tensor min(const Tensor& x) { return largest("min", x, opposite(x), Dims::all(), KeepDim::no); }
Extreme max(const Tensor& x, int dim) { return extreme("max", x, x, dim); }
Extreme min(const Tensor& x, int dim) { return extreme("min", x, opposite(x), dim); }
Tensor argmax(const Tensor& x, int dim) {
  return places_of_largest("argmax", x, 1u << dimension("argmax", x.shape(), dim));
}
Tensor argmin(const Tensor& x, int dim) {
  return places_of_largest("argmin", opposite(x), 1u << dimension("argmin", x.shape(), dim));
}

Tensor argmax(const Tensor& x) { return argmax(flatten(x), 0); }
Tensor argmin(const Tensor& x) { return argmin(flatten(x), 0); }

Tensor softmax(const Tensor& x, int dim) { return along("softmax", x, dim, softmax_rows); }
Tensor log_softmax(const Tensor& x, int dim) {
  return along("log_softmax", x, dim, [](const Tensor& rows) { return log_softmax(rows); });
}

Tensor logsumexp(const Tensor& x, int dim, KeepDim keep) {
  if (is_16_bit(x.dtype())) return in_f32(logsumexp, x, dim, keep);
  const int d = dimension("logsumexp", x.shape(), dim);
  if (x.size(d) == 0) return sum(x, d, keep) - std::numeric_limits<double>::infinity();
  const Tensor top = amax(x.detach(), d, keepdim);
  const Tensor shift = where(isfinite(top), top, 0.0);
  const Tensor y = log(sum(exp(x - shift), d, keepdim)) + shift;
  return keep == KeepDim::yes ? y : squeeze(y, d);
}

Tensor cumsum(const Tensor& x, int dim) {
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

Tensor any(const Tensor& mask) { return sum(mask != 0, Dims::all()) > 0; }
Tensor all(const Tensor& mask) { return sum(mask == 0, Dims::all()) == 0; }

}  // namespace lockstep
