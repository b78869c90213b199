#include <optional>
#include <utility>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/ops/dense.h"
#include "lockstep/autograd/ops/in_f32.h"
#include "lockstep/autograd/rows.h"
#include "lockstep/autograd/saved_tensor.h"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/matmul.h"

namespace lockstep {
namespace {

// The sizes of a tensor but for its last two dimensions, then two more (or one).
Shape leading(const Shape& shape, std::initializer_list<std::int64_t> last) {
  return shape.with(shape.rank() - 2, shape.rank(), last);
}

// y = op(a) op(b): of matrices, or of each pair of two batches (b, n, k) and (b, k, m).
void multiply(const Tensor& a, const Tensor& b, const Tensor& y, kernels::MatmulFlags flags,
              kernels::RowBlocks blocks = {}) {
  if (a.rank() == 2) return kernels::matmul(a, b, y, flags, blocks);
  const auto matrix = [](const Tensor& batch, std::int64_t i) {
    return batch.detach().slice(i, i + 1).view({batch.size(1), batch.size(2)});
  };
  for (std::int64_t i = 0; i < a.size(0); ++i)
    kernels::matmul(matrix(a, i), matrix(b, i), matrix(y, i), flags);
}

// da of y = A B.
void left_gradient(const Tensor& b, const Tensor& dy, const Gradients::Destination& da, bool ta,
                   bool tb, kernels::RowBlocks blocks) {
  if (ta)  // a (k, n): da = B dy^T
    multiply(b, dy, da.tensor,
             {.transpose_a = tb, .transpose_b = true, .accumulate = da.accumulate});
  else  // a (n, k): da = dy B^T
    multiply(dy, b, da.tensor, {.transpose_b = !tb, .accumulate = da.accumulate}, blocks);
}

// db of y = A B.
void right_gradient(const Tensor& a, const Tensor& dy, const Gradients::Destination& db, bool ta,
                    bool tb) {
  if (tb)  // b (m, k): db = dy^T A
    multiply(dy, a, db.tensor,
             {.transpose_a = true, .transpose_b = ta, .accumulate = db.accumulate});
  else  // b (k, m): db = A^T dy
    multiply(a, dy, db.tensor, {.transpose_a = !ta, .accumulate = db.accumulate});
}

// y (n, m) = A B with A = op(a) (n, k), B = op(b) (k, m):  dA = dy B^T, dB = A^T dy.
// For a transposed operand the transposed equation is computed, so that nothing is transposed in
// memory. Batches have one more dimension in front.
Tensor product(const Tensor& a, const Tensor& b, MatmulOptions options) {
  const bool ta = options.transpose_a, tb = options.transpose_b;
  check<ShapeError>(a.rank() == 2 || a.size(ta ? 1 : 2) == b.size(tb ? 2 : 1),
                    "[matmul] inner dimensions differ: batches {} x {}", a.shape(), b.shape());
  const Tensor y = Tensor::empty(leading(a.shape(), {a.size(ta ? -1 : -2), b.size(tb ? -2 : -1)}),
                                 a.dtype(), a.device());
  const bool matrices = a.rank() == 2;
  const Tensor af = detail::factor(a), bf = detail::factor(b);
  const RowParts rows(a);
  std::optional<kernels::ChainProducts> chains;  // else the bits depend on a matrix's place
  if (!matrices && rows.cut()) chains.emplace();
  multiply(af, bf, y, {.transpose_a = ta, .transpose_b = tb},
           ta ? kernels::RowBlocks() : rows.blocks());
  return record(
      "matmul", y, {matrices && ta ? shared(a) : apart(a), matrices ? shared(b) : apart(b)},
      [a = SavedTensor(af), b = SavedTensor(bf), ta, tb](Gradients& g) {
        const Tensor dy = detail::rounded_to(a->dtype(), g.output());  // (n, m)
        if (const auto da = g.into(0))
          left_gradient(*b, dy, da, ta, tb, RowParts(g, rows_in(dy)).blocks());
        if (dy.rank() == 2 && !ta)
          return tb ? add_product(g, 1, dy, *a) : add_product(g, 1, *a, dy);
        if (dy.rank() == 2) {
          if (const auto db = g.into(1)) right_gradient(*a, dy, db, ta, tb);
          return;
        }
        sum_rows(g, 1, dy.size(0), [&](const RowRange& some, const Gradients::Destination& db) {
          right_gradient(some.of(*a), some.of(dy), db, ta, tb);
        });
      });
}

// (..., n, m) -> (b, n, m), repeated to the batch's shape.
Tensor as_batch(const Tensor& x, const Shape& batch) {
  const Shape whole = batch.with(batch.rank(), batch.rank(), {x.size(-2), x.size(-1)});
  return reshape(x.shape() == whole ? x : broadcast_to(x, whole),
                 {batch.numel(), x.size(-2), x.size(-1)});
}

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b, MatmulOptions options) {
  check_defined("matmul", {{"a", a}, {"b", b}});
  check<ShapeError>(a.rank() >= 1 && b.rank() >= 1, "[matmul] of {} and {}: a scalar is no matrix",
                    a.shape(), b.shape());
  const bool in_16_bits = all_16_bit("matmul", {{"a", a}, {"b", b}});
  if (a.rank() == 2 && b.rank() == 2) return product(a, b, options);
  if (a.rank() == 1)
    return squeeze(matmul(unsqueeze(a, 0), b, {.transpose_b = options.transpose_b}),
                   b.rank() == 1 ? -1 : -2);
  if (b.rank() == 1)
    return squeeze(matmul(a, unsqueeze(b, 1), {.transpose_a = options.transpose_a}), -1);
  if (b.rank() == 2 && !options.transpose_a) {  // one product of all rows
    const std::int64_t k = a.size(-1);
    const std::int64_t rows = leading(a.shape(), {a.size(-2)}).numel();
    const Tensor y = product(reshape(a, {rows, k}), b, options);
    return reshape(y, leading(a.shape(), {a.size(-2), y.size(1)}));
  }
  const Shape batch = Shape::broadcast("matmul", leading(a.shape(), {}), leading(b.shape(), {}));
  // Where a matrix repeats, its gradient is a sum over the batch.
  if (in_16_bits && leading(a.shape(), {}) != leading(b.shape(), {}))
    return in_f32(
        [=](const Tensor& x, const Tensor& y) {
          const Autocast off(DType::f32);  // which leaves 16-bit operands alone
          return matmul(x, y, options);
        },
        a, b);
  const Tensor y = product(as_batch(a, batch), as_batch(b, batch), options);
  return reshape(y, batch.with(batch.rank(), batch.rank(), {y.size(1), y.size(2)}));
}

Tensor outer(const Tensor& a, const Tensor& b) {
  check_defined("outer", {{"a", a}, {"b", b}});
  check<ShapeError>(a.rank() == 1 && b.rank() == 1, "[outer] of {} and {}: two vectors are needed",
                    a.shape(), b.shape());
  (void)all_16_bit("outer", {{"a", a}, {"b", b}});
  return unsqueeze(a, 1) * unsqueeze(b, 0);
}

Tensor dot(const Tensor& a, const Tensor& b) {
  check_defined("dot", {{"a", a}, {"b", b}});
  check<ShapeError>(a.rank() == 1 && a.shape() == b.shape(),
                    "[dot] of {} and {}: two vectors of one size are needed", a.shape(), b.shape());
  if (all_16_bit("dot", {{"a", a}, {"b", b}})) return in_f32(dot, a, b);
  return sum(a * b);
}

namespace {

// x as a matrix of rows, whatever its rank: one product of all rows.
Tensor linear_of(const char* operation, const Tensor& x, const Tensor& w, const Tensor& b,
                 bool with_relu, bool for_product = false) {
  check_defined(operation, {{"x", x}, {"w", w}});
  check<ShapeError>(x.rank() >= 1 && w.rank() == 2,
                    "[{}] x must have rank 1 or more, and w rank 2: {} and {}", operation,
                    x.shape(), w.shape());
  const bool rounded =
      w.dtype() == DType::f32 && is_16_bit(x.dtype()) && x.dtype() == Autocast::current();
  const bool narrow = all_16_bit(operation, {{"x", rounded ? w : x}, {"w", w}, {"b", b, true}});
  if (narrow && with_relu) return relu(linear_of(operation, x, w, b, false));
  const bool round = for_product && w.dtype() == DType::f32;
  const DType dtype = round ? Autocast::current() : w.dtype();
  const auto dense = [&](const Tensor& rows) {
    return detail::dense(operation, rows, w, b, with_relu, dtype);
  };
  if (x.rank() == 2) return dense(x);
  if (x.rank() == 1) return squeeze(dense(unsqueeze(x, 0)), 0);
  const auto with_last = [&](std::initializer_list<std::int64_t> size) {
    return x.shape().with(x.rank() - 1, x.rank(), size);
  };
  const Tensor rows = reshape(x, {with_last({}).numel(), x.size(-1)});
  return reshape(dense(rows), with_last({w.size(0)}));
}

}  // namespace

Tensor linear(const Tensor& x, const Tensor& w, const Tensor& b) {
  return linear_of("linear", x, w, b, false);
}

Tensor linear_relu(const Tensor& x, const Tensor& w, const Tensor& b, bool for_product) {
  return linear_of("linear_relu", x, w, b, true, for_product);
}

}  // namespace lockstep
