#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/ops/in_f32.h"
#include "lockstep/autograd/rows.h"
#include "lockstep/autograd/saved_tensor.h"
#include "lockstep/kernels/matmul.h"

namespace lockstep {

// A linear layer: n rows of `in` numbers become n rows of `out` numbers. b may be undefined.
//
//     forward    y  (n, out)  = x w^T + b             x (n, in), w (out, in), b (out)
//     backward   dw (out, in) = dy^T x                dy is the gradient of y, ...
//                db (out)     = the sum of dy's rows
//                dx (n, in)   = dy w
//
// An x that is no matrix is viewed as one. Autocast rounds the factors (detail::factor).
Tensor linear(const Tensor& x, const Tensor& w, const Tensor& b) {
  check_defined("linear", {{"x", x}, {"w", w}});
  check<ShapeError>(x.rank() >= 1 && w.rank() == 2,
                    "[linear] x must have rank 1 or more, and w rank 2: {} and {}", x.shape(),
                    w.shape());
  if (x.rank() == 1) return squeeze(linear(unsqueeze(x, 0), w, b), 0);
  (void)all_16_bit("linear", {{"x", x}, {"w", w}, {"b", b, true}});
  if (x.rank() > 2) {  // one product of all rows
    const auto with_last = [&](std::initializer_list<std::int64_t> size) {
      return x.shape().with(x.rank() - 1, x.rank(), size);
    };
    return reshape(linear(reshape(x, {with_last({}).numel(), x.size(-1)}), w, b),
                   with_last({w.size(0)}));
  }
  Tensor y = Tensor::empty({x.size(0), w.size(0)}, x.dtype(), x.device());
  const Tensor xf = detail::factor(x), wf = detail::factor(w);
  kernels::linear(xf, wf, b, y, RowParts(x).blocks());
  return record("linear", std::move(y), {apart(x), shared(w), shared(b)},
                [x = SavedTensor(xf), w = SavedTensor(wf)](Gradients& g) {
                  const Tensor dy = detail::rounded_to(x->dtype(), g.output());
                  add_product(g, 1, dy, *x);
                  add_rows(g, 2, g.output());
                  if (const auto dx = g.into(0))
                    kernels::matmul(dy, *w, dx.tensor, {.accumulate = dx.accumulate},
                                    RowParts(g, rows_in(dy)).blocks());
                });
}

}  // namespace lockstep
