// What a recorded operation refuses, because its gradient would be wrong without a word: gradients
// of gradients. And what a backward leaves of a tape.

#include <algorithm>
#include <string_view>

#include "lockstep/autograd/tape_pass.h"

namespace lockstep {

using detail::Node;

namespace {

bool recorded(const Operand& operand) {
  return operand.tensor->gradient_ref().tape != GradientRef::nothing;
}

bool any_comes_from(std::uint64_t tape, std::span<const Operand> operands) {
  return std::ranges::any_of(operands, [tape](const Operand& operand) {
    return operand.tensor->gradient_ref().gradient_of == tape;
  });
}

}  // namespace

// A tape that only notes dependencies runs a block for the tape around it.
void Tape::refuse_gradients(const char* operation, std::span<const Operand> operands) const {
  for (const Tape* tape = this; tape;
       tape = tape->purpose_ == Purpose::dependencies ? tape->outer() : nullptr)
    check<StateError>(!any_comes_from(tape->id_, operands),
                      "[{}] an operand was made of a gradient that this tape has computed, and "
                      "second derivatives are not computed: detach() it if it is meant as a "
                      "constant",
                      operation);
}

// Whether `output` needs a node. If not, its handle says what is known of it all the same: whether
// it was made of samples, of a gradient of a living tape, of what was run backward before.
// Steps that are made of a gradient are constants.
bool Tape::wants_node(const char* operation, Tensor& output, std::span<const Operand> operands,
                      Makes makes) const {
  if (std::ranges::none_of(operands, recorded)) {
    detail::mark_rows(operation, output, operands);
    for (const Tape* tape = this; tape; tape = tape->outer())
      if (any_comes_from(tape->id_, operands) && makes != Makes::steps) {
        GradientRef ref = output.gradient_ref();
        ref.gradient_of = tape->id_;
        output.set_gradient_ref(ref);
        break;
      }
    return false;
  }
  refuse_gradients(operation, operands);
  const GradientRef* spent = nullptr;
  for (const Operand& operand : operands)
    if (recorded(operand) && operand.tensor->gradient_ref().tape != GradientRef::parameter)
      if (const GradientRef& ref = own_ref(operation, *operand.tensor); used_up(ref)) spent = &ref;
  if (spent) output.set_gradient_ref(*spent);
  return !spent;
}

// ---- what a backward leaves ----

const GradientRef& Tape::own_ref(const char* operation, const Tensor& tensor) const {
  const GradientRef& ref = tensor.gradient_ref();
  check<StateError>(
      ref.tape == id_,
      "[{}] an operand of shape {} was recorded on tape {}, which is not the current one "
      "(tape {}): keep its tape alive, or detach() it",
      operation, tensor.shape(), ref.tape, id_);
  return ref;
}

// A tape with lanes is one batch's, and keeps its nodes: LossLog asks them for losses of lanes.
bool Tape::used_up(const GradientRef& ref) const {
  return ref.generation != generation_ || (!lanes_ && static_cast<const Node*>(ref.target)->spent);
}

void Tape::refuse_used_up(const char* operation, const GradientRef& ref) const {
  const std::string what =
      ref.generation == generation_
          ? fmt::format("'{}'", static_cast<const Node*>(ref.target)->operation)
          : "what the operand was made of";
  fail<StateError>(
      "[{}] {} was already run backward and its tensors are freed: pass {{.retain = true}} to the "
      "earlier backward",
      operation, what);
}

// Takes out what the backward has spent, and what is made of that: no backward can run there any
// more. So a tape that lives for many steps does not grow. What the loss did not reach stays.
void Tape::drop_spent(Node* first) {
  if (lanes_) return;
  // From the newest node to `first` and then back, for a node is newer than what it is made of.
  Node* newer = nullptr;
  while (newer != first) newer = std::exchange(last_, std::exchange(last_->previous, newer));
  while (newer) {
    Node* const node = std::exchange(newer, newer->previous);
    for (const Node::Input& input : node->inputs)
      if (!node->spent && input.node && input.node->spent) {
        if (node->closure) node->drop(std::exchange(node->closure, nullptr));
        node->operation = input.node->operation;  // for the message
        node->spent = true;
      }
    if (node->spent) {
      std::destroy(node->inputs.begin(), node->inputs.end());
      node->inputs = {};
    }
    if (!node->spent || node->watched) node->previous = std::exchange(last_, node);
  }
}

// Nothing of what was recorded is left, and the memory can be used again.
void Tape::begin_generation() {
  arena_.clear();
  ++generation_;
}

}  // namespace lockstep
