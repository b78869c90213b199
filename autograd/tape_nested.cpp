// Second reading: who observes a backward, parameters that it refuses, what an operation's backward
// may name and pass on, watched tensors, and tapes within the backward of another one
// (checkpoint.h).

#include <algorithm>
#include <limits>

#include "lockstep/autograd/tape_pass.h"
#include "lockstep/kernels/elementwise.h"

namespace lockstep {

using detail::Node;

void Tape::Pass::note(const Parameter& parameter) {
  (parameter.managed() ? managed : parameter.kept_local() ? kept_local : stray) = parameter;
  if (parameter.optimized())
    optimized = parameter;
  else if (!parameter.managed() && !parameter.kept_local() && parameter.name().empty())
    nameless = parameter;
}

// What a rank steps alone would differ between ranks. What nobody steps stays as it is drawn.
void Tape::Pass::refuse_strays(const std::optional<Weight>& weight) const {
  if (weight && weight->origin.parts > 1 && stray.defined() && !managed.defined())
    fail<StateError>(
        "[backward] the batch is this rank's part of the data, but {} is not under "
        "DistributedDataParallel: was DistributedDataParallel not made, or the model replaced "
        "after it? (For a model of this rank alone: Weight{{batch.weight.local}})",
        stray);
  const bool differs = managed.defined() && stray.defined();
  if (!differs && !(optimized.defined() && nameless.defined())) return;
  const char* user = "";
  for (const Node* node = loss; node; node = node->previous)
    for (const Node::Input& input : node->inputs)
      if (node->reached && input.parameter.get() == nameless.id()) user = node->operation;
  if (nameless.defined() && differs)
    fail<StateError>(
        "[backward] the loss reaches {}, used by '{}', and {}, which is under "
        "DistributedDataParallel: does a module leave the first out of its visit()? (If it may "
        "differ between ranks: keep_local())",
        nameless, user, managed);
  if (nameless.defined())
    fail<StateError>(
        "[backward] the loss reaches {}, used by '{}', and {}, which an optimizer steps. None "
        "steps the first: does a module leave it out of its visit()? (If that is meant: "
        "set_name())",
        nameless, user, optimized);
  fail<StateError>(
      "[backward] the loss reaches {}, which is under DistributedDataParallel, and {}, which "
      "is not: was it made or replaced after DistributedDataParallel? (If it may differ between "
      "ranks: keep_local())",
      managed, stray);
}

Node::Input& Gradients::input(int i) const {
  check<UsageError>(i >= 0 && i < std::ssize(node_.inputs),
                    "[{}] backward names operand {}, and there are {}", node_.operation, i,
                    node_.inputs.size());
  return node_.inputs[static_cast<std::size_t>(i)];
}

void Gradients::check_passed(int i, const Tensor& gradient) const {
  const Node::Input& to = input(i);
  const Shape& shape = to.node ? to.node->shape : to.parameter->value.shape();
  const DType dtype = to.node ? to.node->dtype : to.parameter->value.dtype();
  check<ShapeError>(gradient.numel() == shape.numel() && gradient.dtype() == dtype,
                    "[{}] backward passes {} {} to operand {}, which is {} {}", node_.operation,
                    gradient.dtype(), gradient.shape(), i, dtype, shape);
}

// Puts each observer into the list once: first the reducers, by order(), which is the same on all
// ranks, then those that only watch.
void Tape::link_observers(Pass& pass, const Parameter& parameter) {
  pass.note(parameter);
  if (parameter.gradient_state() == GradientState::nothing) parameter.state_->lanes_wait = false;
  const auto order = [](GradientObserver* observer) {
    const GradientReducer* const reducer = observer->as_reducer();
    return reducer ? reducer->order() : std::numeric_limits<std::int64_t>::max();
  };
  for (GradientObserver* observer : parameter.state_->observers) {
    Pass::Link** place = &pass.observers;
    while (*place && (*place)->observer != observer && order((*place)->observer) <= order(observer))
      place = &(*place)->next;
    if (!*place || (*place)->observer != observer)
      *place = new (arena_.allocate(sizeof(Pass::Link))) Pass::Link{observer, *place};
  }
}

void Tape::clear_marks() noexcept {
  for (Node* node = last_; node; node = node->previous) {
    node->reached = false;
    if (!node->watched) node->gradient = {};
    for (Node::Input& input : node->inputs)
      if (input.parameter) input.parameter->pending = 0;
  }
}

void Gradients::pass(int i, const Tensor& gradient) {
  Node::Input& input = this->input(i);
  if (!input) return;
  check_passed(i, gradient);
  if (input.node && !input.node->gradient.defined()) {
    input.written = true;
    input.node->gradient = gradient.detach().view(input.node->shape);
    return;
  }
  const Destination destination = into(i);
  ++copies_made;
  kernels::scale(1, gradient.detach().view(destination.tensor.shape()), destination.tensor,
                 destination.accumulate);
}

Tensor Tape::watch(const Tensor& tensor) {
  visit_any_floating("watch", tensor.dtype(), [](auto) {});
  Node* node = new_node("watch", tensor);
  node->watched = true;
  if (lanes_ && tensor.rank() > 0 && lanes_->counts(tensor.size(0)))
    node->belongs = Node::Belongs::samples;
  Tensor handle = tensor.detach();
  handle.set_gradient_ref({id_, node});
  return handle;
}

Tensor Tape::gradient(const Tensor& watched) const {
  const Node* node = node_of("gradient", watched);
  check<StateError>(node->watched, "[gradient] of '{}': only watched tensors keep their gradient",
                    node->operation);
  // It may share memory with another watched tensor's, and the caller may write to it.
  return node->gradient.defined() && !node->gradient.storage().unique() ? node->gradient.clone()
                                                                        : node->gradient;
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
  for (const Parameter& parameter : declared) before.push_back(parameter.pending());
  Pass pass{.loss = node_of("backward", result),
            .nested = true,
            .zero_weight = outer.zero_weight_,
            .lanes_wait = outer.lanes_wait_};
  try {
    mark(pass);
    for (std::size_t i = 0; i < declared.size(); ++i)
      check<StateError>(declared[i].pending() > before[i],
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
