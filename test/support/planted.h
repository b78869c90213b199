#pragma once
/// A linear layer's operation in which tests plant wrong sums over samples: x (n, in), w (out, in),
/// b (out,). Without a fault it has the bits of linear(). On the CPU.

#include <functional>
#include <memory>

#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/rows.h"
#include "lockstep/kernels/matmul.h"
#include "lockstep/kernels/reduce.h"

namespace lockstep::test {

/// May change the gradient of operand 1 (w) or 2 (b) that a lane has made, before it is added to
/// those of others.
using Plant = std::function<void(int lane, int operand, const Tensor& gradient)>;

inline Tensor planted_linear(const Tensor& x, const Tensor& w, const Tensor& b,
                             const Plant& plant) {
  const Tensor y = Tensor::empty({x.size(0), w.size(0)}, x.dtype());
  kernels::linear(x.detach(), w.detach(), {b.detach()}, y);
  return record(
      "planted_linear", y, {apart(x), shared(w), shared(b)},
      [x = x.detach(), w = w.detach(), plant](Gradients& g) {
        const Tensor& dy = g.output();
        const auto add = [&](int operand, const auto& write) {
          const Lanes* const lanes = Tape::current()->lanes();
          int lane = lanes ? lanes->first() : 0;
          sum_rows(g, operand, dy.size(0), [&](const RowRange& rows, const auto& to) {
            write(rows.of(dy), rows.of(x), to);
            plant(lane++, operand, to.tensor);
          });
        };
        add(1, [](const Tensor& dy_rows, const Tensor& x_rows, const Gradients::Destination& to) {
          kernels::matmul(dy_rows, x_rows, to.tensor,
                          {.transpose_a = true, .accumulate = to.accumulate});
        });
        add(2, [](const Tensor& dy_rows, const Tensor&, const Gradients::Destination& to) {
          kernels::sum_rows(dy_rows, to.tensor, to.accumulate);
        });
        if (const auto dx = g.into(0))
          kernels::matmul(dy, w, dx.tensor, {.accumulate = dx.accumulate});
      });
}

}  // namespace lockstep::test
