#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/saved_tensor.h"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/matmul.h"
#include "lockstep/kernels/reduce.h"

namespace lockstep {
namespace {

/// The sum of dy's rows. 16-bit rows are added up in f32, as products are.
void add_rows(const Tensor& dy, const Gradients::Destination& out) {
  if (is_differentiable(dy.dtype())) return kernels::sum_rows(dy, out.tensor, out.accumulate);
  const Tensor rows = Tensor::empty(dy.shape(), DType::f32, dy.device());
  const Tensor sum = Tensor::empty(out.tensor.shape(), DType::f32, dy.device());
  kernels::cast(dy, rows);
  if (out.accumulate) kernels::cast(out.tensor, sum);
  kernels::sum_rows(rows, sum, out.accumulate);
  kernels::cast(sum, out.tensor);
}

}  // namespace

// y (n, m) = A B with A = op(a) (n, k), B = op(b) (k, m):  dA = dy B^T, dB = A^T dy.
// For a transposed operand the transposed equation is computed, so that nothing is transposed in
// memory.
Tensor matmul(const Tensor& a, const Tensor& b, MatmulOptions options) {
  check<ShapeError>(a.rank() == 2 && b.rank() == 2, "[matmul] operands must have rank 2: {} x {}",
                    a.shape(), b.shape());
  check<DTypeError>(a.dtype() == b.dtype(), "[matmul] dtypes differ: {} and {}", a.dtype(),
                    b.dtype());
  const bool ta = options.transpose_a, tb = options.transpose_b;
  const Tensor y = Tensor::empty({a.size(ta ? 1 : 0), b.size(tb ? 0 : 1)}, a.dtype(), a.device());
  kernels::matmul(a, b, y, {.transpose_a = ta, .transpose_b = tb});
  return record(
      "matmul", y, {&a, &b}, [a = SavedTensor(a), b = SavedTensor(b), ta, tb](Gradients& g) {
        const Tensor& dy = g.output();  // (n, m)
        if (const auto da = g.into(0)) {
          if (ta)  // a (k, n): da = B dy^T
            kernels::matmul(*b, dy, da.tensor,
                            {.transpose_a = tb, .transpose_b = true, .accumulate = da.accumulate});
          else  // a (n, k): da = dy B^T
            kernels::matmul(dy, *b, da.tensor, {.transpose_b = !tb, .accumulate = da.accumulate});
        }
        if (const auto db = g.into(1)) {
          if (tb)  // b (m, k): db = dy^T A
            kernels::matmul(dy, *a, db.tensor,
                            {.transpose_a = true, .transpose_b = ta, .accumulate = db.accumulate});
          else  // b (k, m): db = A^T dy
            kernels::matmul(*a, dy, db.tensor, {.transpose_a = !ta, .accumulate = db.accumulate});
        }
      });
}

// y (n, out) = x (n, in) w^T + b, w (out, in):  dx = dy w, dw = dy^T x, db = the sum of dy's rows.
// The parameters' gradients come first: the sooner they are ready, the sooner they travel.
Tensor linear(const Tensor& x, const Tensor& w, const Tensor& b) {
  check<ShapeError>(x.rank() == 2 && w.rank() == 2, "[linear] x and w must have rank 2: {} and {}",
                    x.shape(), w.shape());
  const Tensor y = Tensor::empty({x.size(0), w.size(0)}, x.dtype(), x.device());
  kernels::linear(x, w, b, y);
  return record("linear", y, {&x, &w, &b}, [x = SavedTensor(x), w = SavedTensor(w)](Gradients& g) {
    const Tensor& dy = g.output();
    if (const auto dw = g.into(1))
      kernels::matmul(dy, *x, dw.tensor, {.transpose_a = true, .accumulate = dw.accumulate});
    if (const auto db = g.into(2)) add_rows(dy, db);
    if (const auto dx = g.into(0))
      kernels::matmul(dy, *w, dx.tensor, {.accumulate = dx.accumulate});
  });
}

}  // namespace lockstep
