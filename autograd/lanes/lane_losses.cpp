#include "lockstep/autograd/lanes/lane_losses.h"

#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/reduce.h"

namespace lockstep {

using detail::Node;

namespace {

// The node of a loss that was recorded on this thread's tape, which has lanes; else null.
Node* node_of_loss(const Tensor& recorded) {
  const Tape* const tape = Tape::current();
  const GradientRef& ref = recorded.gradient_ref();
  if (!tape || !tape->lanes() || !tape->has_recorded(recorded)) return nullptr;
  Node* const node = static_cast<Node*>(ref.target);
  return node->belongs == Node::Belongs::lanes ? node : nullptr;
}

}  // namespace

Tensor with_lanes(const Tensor& recorded, const Tensor& losses) {
  if (Node* const node = node_of_loss(recorded); node && losses.defined()) node->losses = losses;
  return recorded;
}

Tensor lane_losses(const Tensor& recorded) {
  const Node* const node = node_of_loss(recorded);
  return node ? node->losses : Tensor();
}

Tensor all_lanes(const Tensor& losses, const Lanes& lanes, LossKind kind) {
  const Tensor value = Tensor::empty({}, losses.dtype(), losses.device());
  if (kind == LossKind::sum || lanes.rows() == 0) {
    kernels::sum(losses, value);
    return value;
  }
  const Tensor shares = Tensor::empty(losses.shape(), DType::f64);
  for (int k = 0; k < lanes.count(); ++k)
    shares.data<double>()[k] =
        static_cast<double>(lanes.rows_of(k)) / static_cast<double>(lanes.rows());
  const Tensor weighted = Tensor::empty(losses.shape(), losses.dtype());
  kernels::cast(shares, weighted);
  const Tensor parts = weighted.to(losses.device());
  kernels::binary(kernels::Binary::mul, losses, parts, parts);
  kernels::sum(parts, value);
  return value;
}

}  // namespace lockstep
