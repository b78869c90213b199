#include "lockstep/kernels/random.h"

#include "lockstep/autograd/lanes/row_sum.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/ops/in_f32.h"
#include "lockstep/core/generator.h"
#include "lockstep/core/gpu/graph.h"

namespace lockstep {

namespace {

// With lanes, each has numbers of its own: they do not depend on how many lanes this rank has. So
// many rounds lie between two of them, and as many lanes between two calls.
void draw(const Tensor& x, double p, const Tensor& y, const Tensor& mask) {
  const Lanes* const lanes = lanes_of_rows(x);
  if (!lanes) return kernels::dropout(default_philox().reserve(x.numel()), x, p, y, mask);
  constexpr std::int64_t numbers = std::int64_t{1} << 32;
  PhiloxGenerator lane_streams = default_philox();
  const std::vector<std::int64_t> offsets = lanes->offsets(x.size(0));
  for (int lane = 0; lane < lanes->first(); ++lane) lane_streams.reserve(numbers);
  for (std::size_t k = 0; k + 1 < offsets.size(); ++k) {
    const auto rows = [&](const Tensor& of) { return rows_of(of, offsets[k], offsets[k + 1]); };
    kernels::dropout(lane_streams.reserve(numbers), rows(x), p, rows(y), rows(mask));
  }
  for (int lane = 0; lane < lanes->total(); ++lane) default_philox().reserve(numbers);
}

}  // namespace

// y = x mask / (1 - p): dx = dy mask / (1 - p)
Tensor dropout(const Tensor& x, double p) {
  if (p == 0) return x;
  check<StateError>(!StepGraph::recording(),
                    "[dropout] in a step that is being recorded: every replay would draw the same "
                    "mask");
  if (is_16_bit(x.dtype())) return in_f32(dropout, x, p);
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  const Tensor mask = Tensor::empty(x.shape(), DType::u8, x.device());
  draw(x, p, y, mask);
  return record("dropout", y, {&x}, [mask, p](Gradients& g) {
    const auto dx = g.into(0);
    kernels::dropout_backward(g.output(), mask, p, dx.tensor, dx.accumulate);
  });
}

}  // namespace lockstep
