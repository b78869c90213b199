#include <optional>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/lanes/row_sum.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/ops/in_f32.h"
#include "lockstep/autograd/saved_tensor.h"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/matmul.h"
#include "lockstep/kernels/reduce.h"

namespace lockstep {
namespace {

// The sizes of a tensor but for its last two dimensions, then two more (or one).
Shape leading(const Shape& shape, std::initializer_list<std::int64_t> last) {
  return shape.with(shape.rank() - 2, shape.rank(), last);
}

// y = op(a) op(b): of matrices, or of each pair of two batches (b, n, k) and (b, k, m).
void multiply(const Tensor& a, const Tensor& b, const Tensor& y, kernels::MatmulFlags flags) {
  if (a.rank() == 2) return kernels::matmul(a, b, y, flags);
  const auto matrix = [](const Tensor& batch, std::int64_t i) {
    return batch.detach().slice(i, i + 1).view({batch.size(1), batch.size(2)});
  };
  for (std::int64_t i = 0; i < a.size(0); ++i)
    kernels::matmul(matrix(a, i), matrix(b, i), matrix(y, i), flags);
}

// sum += a^T b, over the rows of both.
void add_product(RowSum& sum, const Tensor& a, const Tensor& b) {
  const Gradients::Destination& whole = sum.whole();
  if (whole && !sum.lanes().empty() && a.dtype() == whole.tensor.dtype())
    return kernels::matmul_lanes(a, b, whole.tensor, sum.lanes(),
                                 {.transpose_a = true, .accumulate = whole.accumulate});
  sum.each([&](std::int64_t begin, std::int64_t end, const Gradients::Destination& to) {
    kernels::matmul(rows_of(a, begin, end), rows_of(b, begin, end), to.tensor,
                    {.transpose_a = true, .accumulate = to.accumulate});
  });
}

// Tapes with lanes have chain products; a batch with lanes has them without a tape, too.
struct Chains {
  explicit Chains(const Lanes* lanes) {
    if (lanes) products.emplace();
  }
  std::optional<kernels::ChainProducts> products;
};

// Whether a row of a product with `a` on the left has the same bits beside any other rows.
bool rows_apart(const Tensor& a) {
  return a.device() == Device{} && a.dtype() == DType::f32 &&
         kernels::cpu_products() == kernels::CpuProducts::chain;
}

// The same, of `a` that is not transposed. A library may choose by the number of rows how it
// multiplies them. With lanes the rows of each are therefore multiplied alone, as they are on a
// rank that has no others.
void multiply_rows(const Lanes* lanes, const Tensor& a, const Tensor& b, const Tensor& y,
                   kernels::MatmulFlags flags) {
  const Chains chains(lanes);
  if (a.rank() != 2 || flags.transpose_a || rows_apart(a)) return multiply(a, b, y, flags);
  for_each_block(lanes, a.size(0), [&](std::int64_t begin, std::int64_t end) {
    kernels::matmul(rows_of(a, begin, end), b, rows_of(y, begin, end), flags);
  });
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
  if (ta) keep_lanes_apart("matmul", a);
  if (b.rank() == 2) keep_lanes_apart("matmul", b);
  const Tensor af = detail::factor(a), bf = detail::factor(b);
  multiply_rows(lanes_of_rows(a), af, bf, y, {.transpose_a = ta, .transpose_b = tb});
  return record(
      "matmul", y, {&a, &b}, [a = SavedTensor(af), b = SavedTensor(bf), ta, tb](Gradients& g) {
        const Tensor dy = detail::rounded_to(a->dtype(), g.output());  // (n, m)
        if (ta) {
          if (const auto da = g.into(0))  // a (k, n): da = B dy^T
            multiply(*b, dy, da.tensor,
                     {.transpose_a = tb, .transpose_b = true, .accumulate = da.accumulate});
        } else if (const auto da = g.into(0)) {  // a (n, k): da = dy B^T
          multiply_rows(g.lanes_of_rows(), dy, *b, da.tensor,
                        {.transpose_b = !tb, .accumulate = da.accumulate});
        }
        if (ta) {
          if (const auto db = g.into(1)) right_gradient(*a, dy, db, ta, tb);
        } else if (RowSum sum(g, 1, dy.size(0)); sum) {
          if (dy.rank() == 2 && tb)  // b (m, k): db = dy^T A
            add_product(sum, dy, *a);
          else if (dy.rank() == 2)  // b (k, m): db = A^T dy
            add_product(sum, *a, dy);
          else
            sum.each([&](std::int64_t begin, std::int64_t end, const Gradients::Destination& db) {
              right_gradient(rows_of(*a, begin, end), rows_of(dy, begin, end), db, ta, tb);
            });
        }
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
  check<ShapeError>(a.rank() == 1 && b.rank() == 1, "[outer] of {} and {}: two vectors are needed",
                    a.shape(), b.shape());
  (void)all_16_bit("outer", {{"a", a}, {"b", b}});
  return unsqueeze(a, 1) * unsqueeze(b, 0);
}

Tensor dot(const Tensor& a, const Tensor& b) {
  check<ShapeError>(a.rank() == 1 && a.shape() == b.shape(),
                    "[dot] of {} and {}: two vectors of one size are needed", a.shape(), b.shape());
  if (all_16_bit("dot", {{"a", a}, {"b", b}})) return in_f32(dot, a, b);
  return sum(a * b);
}

// y (n, out) = x (n, in) w^T + b, w (out, in):  dx = dy w, dw = dy^T x, db = the sum of dy's rows.
// The parameters' gradients come first: the sooner they are ready, the sooner they travel.
Tensor linear(const Tensor& x, const Tensor& w, const Tensor& b) {
  check<ShapeError>(x.rank() >= 1 && w.rank() == 2,
                    "[linear] x must have rank 1 or more, and w rank 2: {} and {}", x.shape(),
                    w.shape());
  if (x.rank() == 1) return squeeze(linear(unsqueeze(x, 0), w, b), 0);
  (void)all_16_bit("linear", {{"x", x}, {"w", w}, {"b", b}});
  if (x.rank() > 2) {
    const std::int64_t rows = leading(x.shape(), {x.size(-2)}).numel();
    return reshape(linear(reshape(x, {rows, x.size(-1)}), w, b),
                   leading(x.shape(), {x.size(-2), w.size(0)}));
  }
  keep_lanes_apart("linear", w);
  if (b.defined()) keep_lanes_apart("linear", b);
  const Tensor y = Tensor::empty({x.size(0), w.size(0)}, x.dtype(), x.device());
  const Tensor xf = detail::factor(x), wf = detail::factor(w);
  const Lanes* lanes = lanes_of_rows(x);
  const Chains chains(lanes);
  if (rows_apart(xf)) lanes = nullptr;
  for_each_block(lanes, x.size(0), [&](std::int64_t begin, std::int64_t end) {
    kernels::linear(rows_of(xf, begin, end), wf, b, rows_of(y, begin, end));
  });
  return record(
      "linear", y, {&x, &w, &b}, [x = SavedTensor(xf), w = SavedTensor(wf)](Gradients& g) {
        const Tensor dy = detail::rounded_to(x->dtype(), g.output());
        if (RowSum sum(g, 1, dy.size(0)); sum) add_product(sum, dy, *x);
        if (RowSum sum(g, 2, dy.size(0)); sum)
          sum.each([&](std::int64_t begin, std::int64_t end, const Gradients::Destination& db) {
            kernels::sum_rows(rows_of(g.output(), begin, end), db.tensor, db.accumulate);
          });
        if (const auto dx = g.into(0))
          multiply_rows(g.lanes_of_rows(), dy, *w, dx.tensor, {.accumulate = dx.accumulate});
      });
}

}  // namespace lockstep
