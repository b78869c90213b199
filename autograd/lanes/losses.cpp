// The losses of lanes. A loss is one number, the mean of a rank's own samples, and how many these
// are depends on the ranks. So on a tape with lanes a loss also knows that of each lane, from which
// dist::LossLog makes a mean with the same bits on any number of ranks.
#include "lockstep/autograd/lanes/lane_tape.h"
#include "lockstep/autograd/rows.h"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/reduce.h"

namespace lockstep {

using detail::Node;

namespace {

// The node of a loss that was recorded on this thread's tape, which has lanes; else null.
Node* node_of_loss(const Tensor& recorded) {
  const Tape* const tape = Tape::current();
  if (!tape || !tape->lanes() || !tape->has_recorded(recorded)) return nullptr;
  Node* const node = static_cast<Node*>(recorded.gradient_ref().target);
  return node->rows == Node::Rows::losses ? node : nullptr;
}

// (lanes,): value(k) of lane k. By fills: a step with a copy from the host cannot be recorded.
template <class F>
Tensor of_each_lane(const Lanes& lanes, DType dtype, Device device, const F& value) {
  const Tensor result = Tensor::empty({lanes.count()}, dtype, device);
  for (int k = 0; k < lanes.count(); ++k) result.slice(k, k + 1).fill(value(k));
  return result;
}

}  // namespace

bool detail::is_cut_loss(const Tensor& recorded) { return node_of_loss(recorded) != nullptr; }

Tensor detail::with_losses(const Tensor& recorded, const Tensor& losses) {
  if (Node* const node = node_of_loss(recorded); node && losses.defined()) {
    node->lanes = losses.view({losses.numel()});
    node->shape = node->lanes.shape();
  }
  return recorded;
}

Tensor counting(const Tensor& loss, double counted) {
  if (const Tape* const tape = Tape::current(); tape && tape->has_recorded(loss))
    static_cast<Node*>(loss.gradient_ref().target)->counted = counted;
  return loss;
}

Tensor lane_losses(const Tensor& recorded) {
  const Node* const node = node_of_loss(recorded);
  return node ? node->lanes : Tensor();
}

Tensor detail::all_losses(const Tensor& losses, LossKind kind) {
  const Lanes& lanes = *lanes_here();
  const Tensor value = Tensor::empty({}, losses.dtype(), losses.device());
  if (kind == LossKind::sum || lanes.rows() == 0) {
    kernels::sum(losses, value);
    return value;
  }
  const Tensor parts = of_each_lane(lanes, losses.dtype(), losses.device(), [&](int k) {
    return static_cast<double>(lanes.rows_of(k)) / static_cast<double>(lanes.rows());
  });
  kernels::binary(kernels::Binary::mul, losses, parts, parts);
  kernels::sum(parts, value);
  return value;
}

bool detail::seed_lanes(Node& loss, const Lanes* lanes, const std::optional<Weight>& weight,
                        Contribution& told) {
  check<StateError>(lanes != nullptr,
                    "[backward] the batch has {} lanes, which the tape does not know: make it "
                    "within the loop over the Loader, or under LaneScope(batch.lanes)",
                    weight ? weight->lanes : 0);
  check<StateError>(
      loss.rows == Node::Rows::losses,
      "[backward] the loss of '{}' is made of no samples: with lanes there is one for each of "
      "them",
      loss.operation);
  if (!weight || !lanes->have(*weight))
    fail<StateError>(
        "[backward] with lanes the weight is the number of samples: batch.weight, {} of {} in {} "
        "lanes; got {}{}",
        lanes->rows(), lanes->all_rows(), lanes->total(),
        weight ? fmt::format("{} of {}", weight->local, weight->total) : "none",
        weight && weight->lanes != 0 ? fmt::format(" in {} lanes", weight->lanes) : "");
  loss.gradient = of_each_lane(*lanes, loss.dtype, loss.device, [&](int k) {
    return told.weight == 0 ? 0 : static_cast<double>(lanes->rows_of(k)) / told.divisor;
  });
  told.lanes = lanes->total();
  return told.kind == Contribution::Divisor::summed || !told.sync || LaneRecord::current();
}

}  // namespace lockstep
