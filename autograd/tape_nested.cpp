// Second reading: watched tensors, and tapes within the backward of another one (checkpoint.h).

#include <algorithm>

#include "lockstep/autograd/lanes/lane_tape.h"
#include "lockstep/autograd/tape_pass.h"

namespace lockstep {

using detail::Node;

void Tape::clear_marks() noexcept {
  for (Node* node = last_; node; node = node->previous) {
    node->reached = false;
    if (!node->watched) node->gradient = {};
    if (node->rows == Node::Rows::none) node->lanes = {};
    for (Node::Input& input : node->inputs)
      if (input.parameter) input.parameter->uses_left = 0;
  }
}

Tensor Tape::watch(const Tensor& tensor) {
  check<StateError>(tensor.defined(), "[watch] tensor is undefined");
  visit_any_floating("watch", tensor.dtype(), [](auto) {});
  const Operand itself = {&tensor, Operand::Rows::apart};
  if (const GradientRef& from = tensor.gradient_ref(); from.tape != GradientRef::nothing) {
    if (from.tape != GradientRef::parameter) (void)node_of("watch", tensor);
    const Tensor handle =
        record("watch", tensor.detach(), {&itself, 1}, [](Gradients& g) { g.pass(0, g.output()); });
    static_cast<Node*>(handle.gradient_ref().target)->watched = true;
    return handle;
  }
  const auto rows = lanes_
                        ? detail::rows_recorded(*lanes_, "watch", tensor, {&itself, 1}, Makes::rows)
                        : Node::Rows::none;
  Node* node = new_node("watch", tensor);
  node->watched = true;
  node->rows = rows;
  Tensor handle = tensor.detach();
  handle.set_gradient_ref({id_, node, generation_});
  return handle;
}

Tensor Tape::gradient(const Tensor& watched) const {
  check<StateError>(watched.defined(), "[gradient] watched is undefined");
  const GradientRef& ref = own_ref("gradient", watched);
  if (ref.generation != generation_) refuse_used_up("gradient", ref);
  const Node* node = static_cast<const Node*>(ref.target);
  check<StateError>(node->watched, "[gradient] of '{}': only watched tensors keep their gradient",
                    node->operation);
  if (!node->gradient.defined()) return {};
  // It may share memory with another watched tensor's, and the caller may write to it.
  Tensor own = node->gradient.storage().unique() ? node->gradient : node->gradient.clone();
  if (lanes_)  // a sum over this rank's samples, if it is not made of each
    own.storage().set_origin(node->rows == Node::Rows::samples ? RowOrigin::samples()
                                                               : RowOrigin::mixed("gradient"));
  own.set_gradient_ref({.gradient_of = id_});
  return own;
}

std::vector<Parameter> Tape::parameters_of(const Tensor& result) {
  if (result.gradient_ref().tape == GradientRef::nothing) return {};
  std::vector<Parameter> found;
  Node* const last = node_of("parameters_of", result);
  last->reached = true;
  for (Node* node = last; node; node = node->previous) {
    if (!std::exchange(node->reached, false)) continue;
    for (const Node::Input& input : node->inputs) {
      if (input.node) input.node->reached = true;
      const Parameter parameter(input.parameter);
      if (input.parameter && std::ranges::find(found, parameter) == found.end())
        found.push_back(parameter);
    }
  }
  return found;
}

void Tape::continue_backward(const Tensor& result, const Gradients& outer,
                             std::span<const Parameter> declared) {
  if (result.gradient_ref().tape == GradientRef::nothing && declared.empty()) return;
  std::vector<int> before;
  for (const Parameter& parameter : declared) before.push_back(parameter.uses_left());
  Pass pass{.loss = node_of("backward", result),
            .nested = true,
            .zero_weight = outer.zero_weight_,
            .lanes_wait = outer.lanes_wait_};
  try {
    mark(pass);
    for (std::size_t i = 0; i < declared.size(); ++i)
      check<StateError>(declared[i].uses_left() > before[i],
                        "[{}] the recomputation does not use {}, which the first run did",
                        outer.node_.operation, declared[i]);
    pass.loss->gradient = outer.output();
    run(pass, false);
  } catch (...) {
    clear_marks();
    throw;
  }
}

}  // namespace lockstep
