#include "lockstep/autograd/lanes/row_sum.h"

#include <algorithm>

#include "lockstep/autograd/lanes/lane_record.h"
#include "lockstep/autograd/tape_pass.h"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/tree_reduce.h"

namespace lockstep {

using detail::Node;
using detail::ParameterState;
using Belongs = Node::Belongs;

Gradients::Gradients(Node& node, const Tape& tape, bool zero_weight, bool lanes_wait)
    : node_(node), lanes_(tape.lanes()), zero_weight_(zero_weight), lanes_wait_(lanes_wait) {}

const Lanes* Gradients::lanes_of_rows() const {
  return node_.belongs == Belongs::samples ? lanes_ : nullptr;
}

bool Gradients::sums_lanes(int i) const {
  if (!lanes_ || node_.belongs == Belongs::neither) return false;
  const Node::Input& input = this->input(i);
  return input.parameter || (input.node && input.node->belongs == Belongs::neither);
}

namespace {

void store(const Tensor& sum, const Gradients::Destination& to) {
  kernels::scale(1, sum.view(to.tensor.shape()), to.tensor, to.accumulate);
}

// Where the lanes of a parameter wait that gets several contributions.
Tensor waiting_lanes(const char* operation, ParameterState& parameter, std::int64_t count,
                     bool first) {
  const Tensor& value = parameter.value;
  const Shape shape = value.shape().with(0, 0, {count});
  Tensor& lanes = parameter.lanes;
  if (!first && lanes.shape() != shape)
    fail<StateError>(
        "[{}] the gradient of '{}' holds {} lanes of this rank, and this batch has {}: zero_grad() "
        "first",
        operation, parameter.name, lanes.size(0), count);
  if (!lanes.defined() || lanes.shape() != shape || lanes.device() != value.device())
    lanes = Tensor::empty(shape, value.dtype(), value.device());
  return lanes;
}

}  // namespace

RowSum::RowSum(Gradients& g, int i, std::int64_t rows) : rows_(rows) {
  wanted_ = g.needed(i);
  if (!wanted_) return;
  if (g.sums_lanes(i))
    take_lanes(g, i, *g.lanes());
  else
    to_ = g.place(i);
}

void RowSum::take_lanes(Gradients& g, int i, const Lanes& lanes) {
  const Node::Input& input = g.input(i);
  check<StateError>(input.parameter != nullptr,
                    "[{}] operand {} is made of parameters alone, and its gradient is a sum over "
                    "samples: it has no lanes",
                    g.node_.operation, i);
  ParameterState& parameter = *input.parameter;
  const bool first = parameter.state == GradientState::nothing;
  const bool waits = g.lanes_wait_ || parameter.pending > 1;
  if (first) parameter.lanes_wait = waits;
  check<StateError>(parameter.lanes_wait || !waits,
                    "[{}] the gradient of '{}' has been added up already, without its lanes: "
                    "zero_grad() first",
                    g.node_.operation, parameter.name);
  to_ = g.place(i);
  if (parameter.lanes_wait) {
    parts_ = waiting_lanes(g.node_.operation, parameter, lanes.count(), first);
    if (first && g.zero_weight_) parts_.fill_zero();
  }
  if (g.zero_weight_) return;  // to_ is a place where NaN does no harm
  lanes_ = lanes.offsets(rows_);
  if (!parameter.lanes_wait) return;
  to_ = {};
  accumulate_ = !first;
}

void RowSum::make_parts() {
  const std::int64_t count = std::ssize(lanes_) - 1;
  const Tensor& slot = to_.tensor;
  if (to_ && count > 1)
    parts_ = Tensor::empty(slot.shape().with(0, 0, {count}), slot.dtype(), slot.device());
}

Gradients::Destination RowSum::part(std::size_t k) {
  if (!parts_.defined()) return to_;
  const auto at = static_cast<std::int64_t>(k);
  return {parts_.slice(at, at + 1).view(parts_.shape().with(0, 1, {})), accumulate_};
}

void RowSum::add_parts() {
  if (to_ && parts_.defined()) store(kernels::tree_sum(parts_), to_);
}

void add_waiting_lanes(ParameterState& parameter) {
  // A copy: the lanes themselves may get more.
  store(kernels::tree_sum(parameter.lanes.clone()), {parameter.slot, false});
}

// ---- what a value belongs to ----

namespace {

// The target of what is not recorded, and was made of samples.
char made_of_samples;

Belongs belongs(const Lanes& lanes, const Tensor& tensor) {
  const GradientRef& ref = tensor.gradient_ref();
  if (ref.tape == GradientRef::parameter) return Belongs::neither;
  if (ref.tape != GradientRef::nothing) return static_cast<const Node*>(ref.target)->belongs;
  if (!tensor.defined() || tensor.rank() == 0) return Belongs::neither;
  // A constant could have a multiple of any number of rows.
  const bool samples = tensor.size(0) == lanes.rows() ||
                       (ref.target == &made_of_samples && lanes.counts(tensor.size(0)));
  return samples ? Belongs::samples : Belongs::neither;
}

const Lanes* lanes_here() {
  return Tape::current() ? Tape::current()->lanes() : current_lanes().get();
}

// What may be done with the loss of each lane: it is linear, and the same for a loss of all lanes.
bool keeps_losses(std::string_view operation) {
  for (const char* name : {"add", "sub", "neg", "scale", "cast", "reshape"})
    if (operation == name) return true;
  return false;
}

// What makes one loss for each lane of samples.
bool makes_losses(std::string_view operation) {
  for (const char* name : {"cross_entropy", "weighted_mean", "mse", "mean", "sum"})
    if (operation == name) return true;
  return false;
}

}  // namespace

const Lanes* lanes_of_rows(const Tensor& x) {
  const Lanes* const lanes = lanes_here();
  return lanes && belongs(*lanes, x) == Belongs::samples ? lanes : nullptr;
}

Tensor keep_samples(Tensor output, std::span<const Tensor* const> inputs) {
  if (const Lanes* const lanes = lanes_here();
      lanes && std::ranges::any_of(inputs, [&](const Tensor* input) {
        return belongs(*lanes, *input) == Belongs::samples;
      }))
    output.set_gradient_ref({GradientRef::nothing, &made_of_samples});
  return output;
}

void keep_lanes_apart(const char* operation, const Tensor& x) {
  const bool recorded = x.gradient_ref().tape != GradientRef::nothing;
  check<StateError>(!recorded || !lanes_of_rows(x),
                    "[{}] of shape {} would mix the samples of several lanes: with lanes, what "
                    "becomes of a sample may depend on no other one (but by BatchNorm and a loss)",
                    operation, x.shape());
}

void Tape::note_lanes(detail::Node& node, const Tensor& output,
                      std::span<const Tensor* const> inputs) const {
  bool samples = false, losses = false, others = false;
  for (const Tensor* input : inputs) {
    const Belongs to = belongs(*lanes_, *input);
    samples = samples || to == Belongs::samples;
    losses = losses || to == Belongs::lanes;
    others = others || (to == Belongs::neither && input->defined());
  }
  if (losses) {
    check<StateError>(!samples && !others && keeps_losses(node.operation),
                      "[{}] of a loss: with lanes there is one loss for each of them. They can be "
                      "added, subtracted and multiplied by a number",
                      node.operation);
    node.belongs = Belongs::lanes;
  } else if (samples && makes_losses(node.operation) && output.numel() == 1 && output.rank() == 0) {
    node.belongs = Belongs::lanes;
  } else if (samples) {
    check<StateError>(output.rank() > 0 && lanes_->counts(output.size(0)),
                      "[{}] makes {} of samples, and would mix those of several lanes",
                      node.operation, output.shape());
    node.belongs = Belongs::samples;
  }
  if (node.belongs == Belongs::lanes) node.shape = Shape{lanes_->count()};
}

// The loss of each lane has the weight of its samples.
void Tape::seed_lanes(Pass& pass, const std::optional<Weight>& weight, Contribution& told) const {
  check<StateError>(lanes_ != nullptr,
                    "[backward] the batch has {} lanes, which the tape does not know: make it "
                    "within the loop over the Loader, or under LaneScope(batch.lanes)",
                    weight ? weight->lanes : 0);
  check<StateError>(
      pass.loss->belongs == Belongs::lanes,
      "[backward] the loss of '{}' is made of no samples: with lanes there is one for "
      "each of them",
      pass.loss->operation);
  check<StateError>(
      weight && lanes_->have(*weight),
      "[backward] with lanes the weight is the number of samples: batch.weight, {} of {}; got {}",
      lanes_->rows(), lanes_->all_rows(),
      weight ? fmt::format("{} of {}", weight->local, weight->total) : "none");
  const Tensor seeds = Tensor::empty({lanes_->count()}, DType::f64);
  for (int k = 0; k < lanes_->count(); ++k)
    seeds.data<double>()[k] =
        told.weight == 0 ? 0 : static_cast<double>(lanes_->rows_of(k)) / told.divisor;
  pass.loss->gradient = Tensor::empty(seeds.shape(), pass.loss->dtype);
  kernels::cast(seeds, pass.loss->gradient);
  pass.loss->gradient = pass.loss->gradient.to(pass.loss->device);
  told.lanes = lanes_->total();
  pass.lanes_wait =
      told.kind == Contribution::Divisor::summed || !told.sync || LaneRecord::current();
}

}  // namespace lockstep
