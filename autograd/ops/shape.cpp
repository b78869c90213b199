#include "lockstep/autograd/ops.h"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/reduce.h"

namespace lockstep {
namespace {

Tensor transposed(const Tensor& x) {
  const Tensor y = Tensor::empty(kernels::transposed(x.shape()), x.dtype(), x.device());
  kernels::transpose(x, y);
  return y;
}

}  // namespace

Tensor reshape(const Tensor& x, const Shape& shape) {
  check<ShapeError>(shape.numel() == x.numel(), "[reshape] {} does not have as many elements as {}",
                    shape, x.shape());
  return record("reshape", x.detach().view(shape), {&x},
                [](Gradients& g) { g.pass(0, g.output()); });
}

Tensor transpose(const Tensor& x) {
  return record("transpose", transposed(x.detach()), {&x},
                [](Gradients& g) { g.pass(0, transposed(g.output())); });
}

Tensor broadcast_to(const Tensor& x, const Shape& shape) {
  const Tensor y = Tensor::empty(shape, x.dtype(), x.device());
  kernels::broadcast_to(x, y);
  return record("broadcast_to", y, {&x}, [](Gradients& g) {
    const auto dx = g.into(0);
    kernels::sum_to(g.output(), dx.tensor, dx.accumulate);
  });
}

}  // namespace lockstep
