#include "lockstep/autograd/gradients.h"

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/tape.h"
#include "lockstep/kernels/elementwise.h"

namespace lockstep::detail {

Gradients::Gradients(Node& node, const Tape& tape, bool zero_weight, bool lanes_wait)
    : node_(node), lanes_(tape.lanes()), zero_weight_(zero_weight), lanes_wait_(lanes_wait) {}

const Tensor& Node::output_gradient() {
  if (!gradient.defined()) gradient = Tensor::full(shape, seed, dtype, device);
  return gradient;
}

std::optional<double> Gradients::seed() const {
  return node_.gradient.defined() ? std::nullopt : std::optional(node_.seed);
}

void Gradients::run() {
  if (node_.rows == Node::Rows::none && node_.lanes.defined())
    run_by_lanes();
  else
    node_.run(node_.closure, *this);
}

void Gradients::refuse_sum(int i) const {
  check<StateError>(!sums_rows(i),
                    "[{}] has no lanes: its gradient of operand {} is a sum over samples, or "
                    "belongs to no sample",
                    node_.operation, i);
}

Gradients::Destination Gradients::into(int i) {
  refuse_sum(i);
  return place(i);
}

Gradients::Destination Gradients::place(int i) {
  Node::Input& input = this->input(i);
  if (!input) return {};
  check<StateError>(!input.written, "[{}] backward writes operand {} twice", node_.operation, i);
  if (lane_ >= 0) return place_of_lane(input);
  input.written = true;
  if (input.node) {
    Tensor& gradient = input.node->gradient;
    if (!gradient.defined()) {
      gradient = Tensor::empty(input.node->shape, input.node->dtype, input.node->device);
      return {gradient, false};
    }
    // Another operation passed this memory on and still uses it: copy it before adding.
    if (!gradient.storage().unique()) gradient = gradient.clone();
    return {gradient, true};
  }
  const Parameter parameter(input.parameter);
  const Tensor& slot = parameter.gradient_slot();
  const bool first = input.parameter->state == GradientState::nothing;
  slot.storage().changed();  // a gradient of before may be an operand
  if (first || input.parameter->state == GradientState::synchronized)
    input.parameter->state = GradientState::local;
  if (!zero_weight_) return {slot, !first};
  // 0 x NaN is NaN: the kernel writes to a scratch tensor.
  if (first) slot.fill_zero();
  return {Tensor::empty(slot.shape(), slot.dtype(), slot.device()), false};
}

Gradients::Destination Gradients::into_relu(int i) {
  Destination to = into(i);
  Node* const node = input(i).node;
  if (!to || !node || !node->relu || node->uses != 1 || node->watched || lane_ >= 0) return to;
  to.positive = **node->relu;
  node->relu_done = to.positive.defined();
  return to;
}

Tensor Gradients::before_relu(const Tensor& positive) const {
  if (!positive.defined() || node_.relu_done) return output();
  const bool narrow = is_16_bit(positive.dtype());  // kernels compute in f32
  const auto wide = [&](const Tensor& x) { return rounded_to(narrow ? DType::f32 : x.dtype(), x); };
  const Tensor dz =
      Tensor::empty(positive.shape(), narrow ? DType::f32 : positive.dtype(), positive.device());
  kernels::unary_backward(kernels::Unary::relu, wide(output()), wide(positive), dz, false);
  return rounded_to(positive.dtype(), dz);
}

void Gradients::pass(int i, const Tensor& gradient) {
  Node::Input& input = this->input(i);
  if (!input) return;
  refuse_sum(i);
  check_passed(i, gradient);
  if (input.node && !input.node->gradient.defined() && lane_ < 0) {
    input.written = true;
    input.node->gradient = gradient.detach().view(input.node->shape);
    return;
  }
  const Destination destination = place(i);
  ++copies_made;
  kernels::scale(1, gradient.detach().view(destination.tensor.shape()), destination.tensor,
                 destination.accumulate);
}

Node::Input& Gradients::input(int i) const {
  check<UsageError>(i >= 0 && i < std::ssize(node_.inputs),
                    "[{}] backward names operand {}, and there are {}", node_.operation, i,
                    node_.inputs.size());
  return node_.inputs[static_cast<std::size_t>(i)];
}

const Shape& Gradients::shape(int i) const {
  const Node::Input& to = input(i);
  return to.node ? to.node->shape : to.parameter->value.shape();
}

void Gradients::check_passed(int i, const Tensor& gradient) const {
  const Node::Input& to = input(i);
  const Shape& shape = this->shape(i);
  const DType dtype = to.node ? to.node->dtype : to.parameter->value.dtype();
  check<ShapeError>(gradient.numel() == shape.numel() && gradient.dtype() == dtype,
                    "[{}] backward passes {} {} to operand {}, which is {} {}", node_.operation,
                    gradient.dtype(), gradient.shape(), i, dtype, shape);
}

}  // namespace lockstep::detail
