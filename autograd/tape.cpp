#include "lockstep/autograd/tape.h"

#include <atomic>

#include "lockstep/autograd/lanes/lane_tape.h"
#include "lockstep/autograd/lanes/row_sum.h"
#include "lockstep/autograd/tape_pass.h"

namespace lockstep {

using detail::Node;

namespace {
std::atomic<std::uint64_t> tapes_made{0};
}  // namespace

Tape::Tape(Purpose purpose)
    : ThreadScope("Tape"),
      id_(++tapes_made),
      purpose_(purpose),
      lanes_(outer() ? outer()->lanes_ : current_lanes()) {
  if (lanes_) chains_.emplace();
}

Tape::~Tape() {
  for (Node* node = last_; node;) {
    if (node->closure) node->drop(node->closure);
    std::exchange(node, node->previous)->~Node();
  }
}

// ---- recording ----

Node* Tape::node_of(const char* operation, const Tensor& tensor) const {
  const GradientRef& ref = own_ref(operation, tensor);
  if (used_up(ref)) refuse_used_up(operation, ref);
  return static_cast<Node*>(ref.target);
}

Node* Tape::new_node(const char* operation, const Tensor& output) {
  if (!last_) begin_generation();
  Node* node = new (arena_.allocate(sizeof(Node))) Node;
  node->previous = std::exchange(last_, node);
  node->operation = operation;
  node->shape = output.shape();
  node->dtype = output.dtype();
  node->device = output.device();
  return node;
}

Node* Tape::append(const char* operation, Tensor& output, std::span<const Operand> operands,
                   Makes makes) {
  if (!wants_node(operation, output, operands, makes)) return nullptr;
  const auto rows = lanes_ ? detail::rows_recorded(*lanes_, operation, output, operands, makes)
                           : Node::Rows::none;
  Node* node = new_node(operation, output);
  node->rows = rows;
  auto* slots = static_cast<Node::Input*>(arena_.allocate(operands.size() * sizeof(Node::Input)));
  std::uninitialized_value_construct_n(slots, operands.size());
  node->inputs = {slots, operands.size()};
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const GradientRef& ref = operands[i].tensor->gradient_ref();
    if (ref.tape == GradientRef::parameter)
      slots[i].parameter = static_cast<detail::ParameterState*>(ref.target)->shared_from_this();
    else if (ref.tape != GradientRef::nothing)
      slots[i].node = static_cast<Node*>(ref.target);
  }
  if (trace::here.watcher) show_output(*node, output, operands, makes, lanes());
  output.set_gradient_ref({id_, node, generation_});
  return node;
}

// ---- backward ----

void Tape::backward(const Tensor& loss, std::optional<Weight> weight, BackwardOptions options) {
  check<StateError>(loss.defined(), "[backward] loss is undefined");
  check<ShapeError>(loss.numel() == 1, "[backward] the loss must have one element, its shape is {}",
                    loss.shape());
  const std::uint64_t recorded_on = loss.gradient_ref().tape;
  check<StateError>(recorded_on != GradientRef::nothing && recorded_on != GradientRef::parameter,
                    "[backward] the loss was not recorded: no tape was alive, or it is no "
                    "operation's result, or it depends on no parameter and no watched tensor");
  check<StateError>(purpose_ == Purpose::backward, "[backward] this tape only notes dependencies");
  Pass pass{node_of("backward", loss)};
  try {
    mark(pass);
    begin(pass, weight, options);
    run(pass, options.retain);
    for (Pass::Link* link = pass.observers; link; link = link->next)
      link->observer->backward_ends();
    if (!options.retain) drop_spent(pass.first);
  } catch (...) {
    clear_marks();
    for (Pass::Link* link = pass.observers; link; link = link->next)
      link->observer->backward_failed();
    throw;
  }
}

// From the loss back to the start: what does it reach, and how often is each parameter written?
void Tape::mark(Pass& pass) {
  pass.loss->reached = true;
  int open = 1;  // reached, and not met yet
  for (Node* node = pass.loss; open > 0; node = node->previous) {
    if (!node->reached) continue;
    --open;
    pass.first = node;
    if (node->spent) refuse_used_up("backward", {id_, node, generation_});
    if (node->watched) node->gradient = {};  // of an earlier backward
    for (Node::Input& input : node->inputs) {
      if (input.node && !std::exchange(input.node->reached, true)) {
        ++open;
        input.node->uses = 0;
        input.node->relu_done = false;
      }
      if (input.node) ++input.node->uses;
      input.written = false;
      if (!input.parameter || ++input.parameter->uses_left > 1) continue;
      const Parameter parameter(input.parameter);  // met for the first time
      check<StateError>(!pass.nested,
                        "[backward] the recomputation uses {}, which the first run did not",
                        parameter);
      link_observers(pass, parameter);
    }
  }
}

// Seeds the loss and tells the observers. There is one seed, so all parameters that the loss
// reaches have the same weight and divisor.
void Tape::begin(Pass& pass, std::optional<Weight> weight, BackwardOptions options) const {
  pass.refuse_strays(weight);
  pass.refuse_other_means(weight);
  Contribution told = contribution(pass, weight, options.sync);
  if (weight) told.origin = weight->origin;
  pass.zero_weight = told.weight == 0;
  if (lanes_ || (weight && weight->lanes != 0))
    pass.lanes_wait = detail::seed_lanes(*pass.loss, lanes(), weight, told);
  else
    pass.loss->seed = told.weight / told.divisor;
  for (Pass::Link* link = pass.observers; link; link = link->next) {
    link->observer->backward_begins(told);
    if (const GradientReducer* const reducer = link->observer->as_reducer()) {
      told.eager = false;
      told.window = reducer->window_weight();
    }
  }
}

void Tape::run(Pass& pass, bool retain) {
  const Node* const end = pass.first->previous;
  for (Node* node = pass.loss; node != end; node = node->previous) {
    if (!std::exchange(node->reached, false)) continue;
    if (!node->closure) {  // it is watched
      add_lanes(*node);
      continue;
    }
    if (trace::here.watcher) show_gradient(*node, lanes());
    Tensor kept = node->watched ? sum_of_lanes(*node) : Tensor();
    {
      const trace::Slice slice(trace::Kind::backward, node->operation);
      Gradients(*node, *this, pass.zero_weight, pass.lanes_wait).run();
    }
    for (const Node::Input& input : node->inputs)
      check<StateError>(!input || input.written,
                        "[{}] backward left the gradient of operand {} unwritten", node->operation,
                        &input - node->inputs.data());
    node->gradient = std::move(kept);
    if (!retain) {
      std::exchange(node->drop, nullptr)(std::exchange(node->closure, nullptr));
      node->relu = nullptr;
      node->spent = true;
    }
    tell_ready(*node);
  }
}

void Tape::tell_ready(Node& node) {
  for (Node::Input& input : node.inputs) {
    if (!input.parameter || --input.parameter->uses_left > 0) continue;
    if (input.parameter->lanes_wait) add_waiting_lanes(*input.parameter);
    if (trace::here.watcher) show_ready(node, *input.parameter);  // before a reducer adds it up
    const Parameter parameter(input.parameter);
    for (GradientObserver* observer : input.parameter->observers)
      observer->gradient_ready(parameter);
  }
}

}  // namespace lockstep
