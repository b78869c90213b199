#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/saved_tensor.h"
#include "lockstep/kernels/loss.h"
#include "lockstep/kernels/softmax.h"

namespace lockstep {

Tensor log_softmax(const Tensor& x) {
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  kernels::log_softmax(x, y);
  return record("log_softmax", y, {&x}, [y](Gradients& g) {
    const auto dx = g.into(0);
    kernels::log_softmax_backward(g.output(), y, dx.tensor, dx.accumulate);
  });
}

Tensor cross_entropy(const Tensor& logits, const Tensor& labels) {
  const Tensor loss = Tensor::empty({}, logits.dtype(), logits.device());
  const bool recording = Tape::current() && logits.gradient_ref().tape != GradientRef::nothing;
  const Tensor saved =  // softmax - onehot
      recording ? Tensor::empty(logits.shape(), logits.dtype(), logits.device()) : Tensor();
  kernels::cross_entropy(logits, labels, loss, saved);
  return record("cross_entropy", loss, {&logits}, [saved](Gradients& g) {
    const auto dx = g.into(0);
    kernels::cross_entropy_backward(g.output(), saved, dx.tensor, dx.accumulate);
  });
}

Tensor mse(const Tensor& x, const Tensor& y) {
  const Tensor loss = Tensor::empty({}, x.dtype(), x.device());
  kernels::mse(x, y, loss);
  return record("mse", loss, {&x, &y}, [x = SavedTensor(x), y = SavedTensor(y)](Gradients& g) {
    if (const auto dx = g.into(0))
      kernels::mse_backward(g.output(), *x, *y, dx.tensor, dx.accumulate);
    if (const auto dy = g.into(1))
      kernels::mse_backward(g.output(), *y, *x, dy.tensor, dy.accumulate);
  });
}

}  // namespace lockstep
