#include "lockstep/autograd/tape.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "lockstep/core/copies.h"
#include "lockstep/core/memory.h"
#include "lockstep/kernels/elementwise.h"

namespace lockstep {

using detail::Node;
using detail::ParameterState;

namespace {
thread_local Tape* current_tape = nullptr;

std::uint64_t next_id() {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}
}  // namespace

// Nodes and closures live in chunks of the caching allocator: a steady step allocates none.
struct Tape::Chunk {
  static constexpr std::size_t usual = 32 << 10;
  Chunk* next;
  std::size_t capacity;  // bytes, this header included
  std::size_t used;
};

struct Tape::ObserverLink {
  GradientObserver* observer;
  ObserverLink* next;
};

struct Tape::Pass {
  Node* loss;
  ObserverLink* observers = nullptr;  // of the parameters that the loss reaches, each once
  Parameter managed{}, stray{};       // one under a reducer, one that should be: see backward()
  Parameter kept_local{};             // one that is under none, on purpose
  bool nested = false;                // within a pass of an outer tape, which has the observers
  bool zero_weight = false;
};

Tape::Tape(Purpose purpose) : id_(next_id()), purpose_(purpose), outer_(current_tape) {
  current_tape = this;
}

Tape::~Tape() {
  for (Node* node = last_; node;) {
    if (node->closure) node->drop(node->closure);
    std::exchange(node, node->previous)->~Node();
  }
  while (chunks_) {
    Chunk* chunk = std::exchange(chunks_, chunks_->next);
    memory::release(chunk, chunk->capacity);
  }
  current_tape = outer_;
}

Tape* Tape::current() { return current_tape; }

void* Tape::allocate(std::size_t bytes) {
  constexpr std::size_t align = alignof(std::max_align_t);
  bytes = (bytes + align - 1) / align * align;
  constexpr std::size_t header = (sizeof(Chunk) + align - 1) / align * align;
  if (!chunks_ || chunks_->used + bytes > chunks_->capacity) {
    const std::size_t capacity = std::max(Chunk::usual, header + bytes);
    chunks_ = new (memory::allocate(capacity)) Chunk{chunks_, capacity, header};
  }
  void* place = reinterpret_cast<std::byte*>(chunks_) + chunks_->used;
  chunks_->used += bytes;
  return place;
}

Node* Tape::node_of(const char* operation, const Tensor& tensor) const {
  const GradientRef& ref = tensor.gradient_ref();
  check<StateError>(
      ref.tape == id_,
      "[{}] an operand of shape {} was recorded on tape {}, which is not the current one "
      "(tape {}): keep its tape alive, or detach() it",
      operation, tensor.shape(), ref.tape, id_);
  return static_cast<Node*>(ref.target);
}

Node* Tape::append(const char* operation, const Tensor& output,
                   std::span<const Tensor* const> inputs) {
  const auto recorded = [](const Tensor* tensor) {
    return tensor->gradient_ref().tape != GradientRef::nothing;
  };
  if (std::ranges::none_of(inputs, recorded)) return nullptr;
  for (const Tensor* input : inputs)
    if (recorded(input) && input->gradient_ref().tape != GradientRef::parameter)
      (void)node_of(operation, *input);  // throws before anything is built
  Node* node = new (allocate(sizeof(Node))) Node;
  auto* slots = static_cast<Node::Input*>(allocate(inputs.size() * sizeof(Node::Input)));
  std::uninitialized_value_construct_n(slots, inputs.size());
  node->inputs = {slots, inputs.size()};
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const GradientRef& ref = inputs[i]->gradient_ref();
    if (ref.tape == GradientRef::parameter)
      slots[i].parameter = static_cast<ParameterState*>(ref.target)->shared_from_this();
    else if (ref.tape != GradientRef::nothing)
      slots[i].node = static_cast<Node*>(ref.target);
  }
  node->previous = std::exchange(last_, node);
  node->operation = operation;
  node->shape = output.shape();
  node->dtype = output.dtype();
  node->device = output.device();
  return node;
}

Tensor Tape::watch(const Tensor& tensor) {
  check<DTypeError>(is_differentiable(tensor.dtype()), "[watch] takes f32 or f64, got {}",
                    tensor.dtype());
  Node* node = new (allocate(sizeof(Node))) Node;
  node->previous = std::exchange(last_, node);
  node->operation = "watch";
  node->shape = tensor.shape();
  node->dtype = tensor.dtype();
  node->device = tensor.device();
  node->watched = true;
  Tensor handle = tensor.detach();
  handle.set_gradient_ref({id_, node});
  return handle;
}

Tensor Tape::gradient(const Tensor& watched) const {
  const Node* node = node_of("gradient", watched);
  check<StateError>(node->watched, "[gradient] of '{}': only watched tensors keep their gradient",
                    node->operation);
  // Perhaps shared with another watched tensor's: what is given away is written by others.
  return node->gradient.defined() && !node->gradient.storage().unique() ? node->gradient.clone()
                                                                        : node->gradient;
}

void Tape::backward(const Tensor& loss, std::optional<Weight> weight, BackwardOptions options) {
  check<ShapeError>(loss.numel() == 1, "[backward] the loss must have one element, its shape is {}",
                    loss.shape());
  const std::uint64_t recorded_on = loss.gradient_ref().tape;
  check<StateError>(recorded_on != GradientRef::nothing && recorded_on != GradientRef::parameter,
                    "[backward] the loss was not recorded: no tape was alive, or it is no "
                    "operation's result, or it "
                    "depends on no parameter and no watched tensor");
  check<StateError>(purpose_ == Purpose::backward, "[backward] this tape only notes dependencies");
  Pass pass{node_of("backward", loss)};
  try {
    mark(pass);
    if (pass.managed.defined() && pass.stray.defined())
      fail<StateError>(
          "[backward] the loss reaches '{}', which is under a reducer, and '{}', which is under "
          "none: was it made or replaced after DistributedDataParallel? (If it is meant to differ "
          "between ranks: keep_local())",
          pass.managed.name(), pass.stray.name());
    const Contribution c = contribution(pass, weight, options.sync);
    pass.zero_weight = c.weight == 0;
    pass.loss->gradient =
        Tensor::full(loss.shape(), c.weight / c.divisor, loss.dtype(), loss.device());
    Contribution told = c;
    for (ObserverLink* link = pass.observers; link; link = link->next) {
      link->observer->backward_begins(told);
      if (link->observer->summed_ranks() > 0) told.eager = false;
    }
    run(pass, options.retain);
    for (ObserverLink* link = pass.observers; link; link = link->next)
      link->observer->backward_ends();
  } catch (...) {
    clear_marks();
    for (ObserverLink* link = pass.observers; link; link = link->next)
      link->observer->backward_failed();
    throw;
  }
}

// One rule for every reducer in the pass: the seed is the same for all parameters.
Contribution Tape::contribution(const Pass& pass, std::optional<Weight> weight, bool sync) {
  using Divisor = Contribution::Divisor;
  int ranks = 0;
  bool in_window = false;
  for (ObserverLink* link = pass.observers; link; link = link->next) {
    ranks = std::max(ranks, link->observer->summed_ranks());
    in_window = link->observer->in_window(sync) || in_window;
  }
  const bool unknown = weight && weight->total == Weight::summed;
  const Weight w = weight.value_or(Weight{1, std::max(1.0, static_cast<double>(ranks))});
  check<StateError>(w.local >= 0 && (unknown || w.total >= w.local) && std::isfinite(w.local) &&
                        std::isfinite(w.total),
                    "[backward] weight {} of {}", w.local, w.total);
  if (w.local == 0) return {0, 1, Divisor::none, sync};
  if (ranks == 0 && unknown) return {1, 1, Divisor::given, sync};
  if (ranks > 0 && (in_window || unknown)) {
    if (pass.kept_local.defined())
      fail<StateError>(
          "[backward] the gradient of '{}', which is kept local, would not be divided by the total "
          "of the weights, which is not known before the window closes",
          pass.kept_local.name());
    return {w.local, 1, Divisor::summed, sync};
  }
  return {w.local, w.total, weight ? Divisor::given : Divisor::ranks, sync};
}

void Tape::continue_backward(const Tensor& result, const Gradients& outer,
                             std::span<const Parameter> declared) {
  if (result.gradient_ref().tape == GradientRef::nothing && declared.empty()) return;
  std::vector<int> before;
  for (const Parameter& parameter : declared) before.push_back(parameter.pending());
  Pass pass{.loss = node_of("backward", result), .nested = true, .zero_weight = outer.zero_weight_};
  try {
    mark(pass);
    for (std::size_t i = 0; i < declared.size(); ++i)
      check<StateError>(declared[i].pending() > before[i],
                        "[{}] the recomputation does not use '{}', which the first run did",
                        outer.node_.operation, declared[i].name());
    pass.loss->gradient = outer.output();
    run(pass, false);
  } catch (...) {
    clear_marks();
    throw;
  }
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

// From the loss back to the start: what does it reach, and how often is each parameter written?
void Tape::mark(Pass& pass) {
  pass.loss->reached = true;
  for (Node* node = pass.loss; node; node = node->previous) {
    if (!node->reached) continue;
    check<StateError>(!node->spent,
                      "[backward] '{}' was already run backward and its tensors are freed: pass "
                      "{{.retain = true}} to the earlier backward",
                      node->operation);
    for (Node::Input& input : node->inputs) {
      if (input.node) input.node->reached = true;
      input.written = false;
      if (!input.parameter || input.parameter->pending++ > 0) continue;
      const Parameter parameter(input.parameter);
      check<StateError>(!pass.nested,
                        "[backward] the recomputation uses '{}', which the first run did not",
                        parameter.name());
      link_observers(pass, parameter);
    }
  }
}

void Tape::link_observers(Pass& pass, const Parameter& parameter) {
  if (parameter.managed())
    pass.managed = parameter;
  else
    (parameter.kept_local() ? pass.kept_local : pass.stray) = parameter;
  for (GradientObserver* observer : parameter.observers()) {
    ObserverLink** place = &pass.observers;  // by order
    while (*place && (*place)->observer != observer &&
           (*place)->observer->order() <= observer->order())
      place = &(*place)->next;
    if (!*place || (*place)->observer != observer)
      *place = new (allocate(sizeof(ObserverLink))) ObserverLink{observer, *place};
  }
}

void Tape::run(Pass& pass, bool retain) {
  for (Node* node = pass.loss; node; node = node->previous) {
    if (!std::exchange(node->reached, false) || !node->closure) continue;
    Gradients gradients(*node, pass.zero_weight);
    node->run(node->closure, gradients);
    for (const Node::Input& input : node->inputs)
      check<StateError>(!input || input.written,
                        "[{}] backward left the gradient of operand {} unwritten", node->operation,
                        &input - node->inputs.data());
    node->gradient = {};
    if (!retain) {
      std::exchange(node->drop, nullptr)(std::exchange(node->closure, nullptr));
      node->spent = true;
    }
    contributed(*node);
  }
}

void Tape::contributed(Node& node) {
  for (Node::Input& input : node.inputs) {
    if (!input.parameter || --input.parameter->pending > 0) continue;
    const Parameter parameter(input.parameter);
    for (GradientObserver* observer : input.parameter->observers)
      observer->gradient_ready(parameter);
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

namespace detail {

bool Gradients::needed(int i) const { return static_cast<bool>(input(i)); }

void Gradients::written(int i) { input(i).written = true; }

Gradients::Destination Gradients::into(int i) {
  Node::Input& input = this->input(i);
  if (!input) return {};
  check<StateError>(!input.written, "[{}] backward writes operand {} twice", node_.operation, i);
  input.written = true;
  if (input.node) {
    Tensor& gradient = input.node->gradient;
    if (!gradient.defined()) {
      gradient = Tensor::empty(input.node->shape, input.node->dtype, input.node->device);
      return {gradient, false};
    }
    // Passed on by another operation and still used there: what is added must not be seen there.
    if (!gradient.storage().unique()) gradient = gradient.clone();
    return {gradient, true};
  }
  const Parameter parameter(input.parameter);
  const Tensor& slot = parameter.gradient_slot();
  const bool first = input.parameter->state == GradientState::nothing;
  if (first || input.parameter->state == GradientState::synchronized)
    input.parameter->state = GradientState::local;
  if (!zero_weight_) return {slot, !first};
  if (first) slot.fill_zero();
  return {Tensor::empty(slot.shape(), slot.dtype(), slot.device()), false};
}

void Gradients::pass(int i, const Tensor& gradient) {
  Node::Input& input = this->input(i);
  if (!input) return;
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

}  // namespace detail

}  // namespace lockstep
