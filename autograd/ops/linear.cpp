#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/ops/dense.h"
#include "lockstep/autograd/rows.h"
#include "lockstep/autograd/saved_tensor.h"
#include "lockstep/kernels/matmul.h"

namespace lockstep {

namespace {

// A linear layer: n rows of `in` numbers become n rows of `out` numbers. b may be undefined.
//
//     forward    z  (n, out)  = x w^T + b             x (n, in), w (out, in), b (out)
//                y            = relu(z), or z         in the same kernel
//     backward   dz           = dy where y > 0        dy is the gradient of y, ...
//                dw (out, in) = dz^T x
//                db (out)     = the sum of dz's rows
//                dx (n, in)   = dz w
//
// If x comes from such a layer, whose dy is this dx alone, the product that writes dx makes that
// layer's dz of it. Autocast rounds x, w and dz: here, or in the kernels of the products.
struct DenseBackward {
  SavedTensor x, w;
  SavedTensor relu;  // y, if it is relu(z)
  detail::FactorRounding rounding;

  void operator()(Gradients& g) const {
    const Tensor dz = rounding(g.before_relu(*relu));
    add_product_and_rows(g, 1, 2, dz, *x, rounding.dtype);
    if (const auto dx = g.into_relu(0))
      kernels::matmul(dz, *w, dx.tensor, {.accumulate = dx.accumulate, .round_to = rounding.dtype},
                      RowParts(g, rows_in(dz)).blocks(), {.positive = dx.positive});
  }
};

}  // namespace

Tensor detail::dense(const char* operation, const Tensor& x, const Tensor& w, const Tensor& b,
                     bool relu, DType dtype) {
  Tensor y = Tensor::empty({x.size(0), w.size(0)}, dtype, x.device());
  const RowParts rows(x);
  const FactorRounding rounding = layer_rounding(x, w, !rows.cut());
  const Tensor xf = rounding(x), wf = rounding(w);
  kernels::linear(xf, wf, {.bias = b, .relu = relu}, y, rows.blocks(), rounding.dtype);
  const SavedTensor positive(relu ? y : Tensor());
  return record(operation, std::move(y), {apart(x), shared(w), shared(b)},
                DenseBackward{SavedTensor(xf), SavedTensor(wf), positive, rounding});
}

}  // namespace lockstep
