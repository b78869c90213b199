#include "lockstep/kernels/random.h"

#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/ops/in_f32.h"
#include "lockstep/autograd/rows.h"
#include "lockstep/core/generator.h"
#include "lockstep/core/gpu/graph.h"

namespace lockstep {

// y = x mask / (1 - p): dx = dy mask / (1 - p)
Tensor dropout(const Tensor& x, double p) {
  check_defined("dropout", {{"x", x}});
  if (p == 0) return x;
  check<NotRecordable>(
      !StepGraph::recording(),
      "[dropout] in a step that is being recorded: every replay would draw the same "
      "mask");
  if (is_16_bit(x.dtype())) return in_f32(dropout, x, p);
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  const Tensor mask = Tensor::empty(x.shape(), DType::u8, x.device());
  draw_for(x, [&](const RowRange& rows, const PhiloxState& numbers) {
    kernels::dropout(numbers, rows.of(x), p, rows.of(y), rows.of(mask));
  });
  return record("dropout", y, {apart(x)}, [mask, p](Gradients& g) {
    const auto dx = g.into(0);
    kernels::dropout_backward(g.output(), mask, p, dx.tensor, dx.accumulate);
  });
}

}  // namespace lockstep
