#include "lockstep/autograd/tape.h"

#include <algorithm>
#include <atomic>
#include <cmath>

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
  bool muted = false;
  bool begun = false;  // the observers know of it
};

Tape::Tape() : id_(next_id()), outer_(current_tape) { current_tape = this; }

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
                   std::initializer_list<const Tensor*> inputs) {
  Node::Input found[Node::max_inputs];
  int i = 0;
  bool any = false;
  check<StateError>(inputs.size() <= Node::max_inputs, "[{}] {} operands are recorded, at most {}",
                    operation, inputs.size(), Node::max_inputs);
  for (const Tensor* input : inputs) {
    Node::Input& slot = found[i++];
    const GradientRef& ref = input->gradient_ref();
    if (ref.tape == GradientRef::parameter)
      slot.parameter = static_cast<ParameterState*>(ref.target)->shared_from_this();
    else if (ref.tape != GradientRef::nothing)
      slot.node = node_of(operation, *input);
    any = any || slot;
  }
  if (!any) return nullptr;
  Node* node = new (allocate(sizeof(Node))) Node;
  node->previous = std::exchange(last_, node);
  node->operation = operation;
  node->shape = output.shape();
  node->dtype = output.dtype();
  node->device = output.device();
  std::move(found, found + i, node->inputs);
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
  Pass pass{node_of("backward", loss)};
  int ranks = 1;
  try {
    mark(pass);
    for (ObserverLink* link = pass.observers; link; link = link->next)
      ranks = std::max(ranks, link->observer->summed_ranks());
    const Weight w = weight.value_or(Weight{1, static_cast<double>(ranks)});
    check<StateError>(w.local >= 0 && w.total >= w.local && std::isfinite(w.total),
                      "[backward] weight {} of {}", w.local, w.total);
    pass.muted = w.local == 0;
    pass.loss->gradient =
        Tensor::full(loss.shape(), pass.muted ? 0 : w.local / w.total, loss.dtype(), loss.device());
    pass.begun = true;
    for (ObserverLink* link = pass.observers; link; link = link->next)
      link->observer->backward_begins();
    run(pass, options.retain);
    for (ObserverLink* link = pass.observers; link; link = link->next)
      link->observer->backward_ends();
  } catch (...) {
    clear_marks();
    for (ObserverLink* link = pass.begun ? pass.observers : nullptr; link; link = link->next)
      link->observer->backward_failed();
    throw;
  }
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
      if (!input.parameter || input.parameter->pending++ > 0) continue;
      for (GradientObserver* observer : input.parameter->observers) {
        ObserverLink* link = pass.observers;
        while (link && link->observer != observer) link = link->next;
        if (!link)
          pass.observers =
              new (allocate(sizeof(ObserverLink))) ObserverLink{observer, pass.observers};
      }
    }
  }
}

void Tape::run(Pass& pass, bool retain) {
  for (Node* node = pass.loss; node; node = node->previous) {
    if (!std::exchange(node->reached, false) || !node->closure) continue;
    Gradients gradients(*node, pass.muted);
    node->run(node->closure, gradients);
    for (int i = 0; i < Node::max_inputs; ++i)
      check<StateError>(!node->inputs[i] || (gradients.written_ >> i & 1),
                        "[{}] backward left the gradient of operand {} unwritten", node->operation,
                        i);
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

bool Gradients::needed(int i) const { return static_cast<bool>(node_.inputs[i]); }

Gradients::Destination Gradients::into(int i) {
  Node::Input& input = node_.inputs[i];
  if (!input) return {};
  check<StateError>(!(written_ >> i & 1), "[{}] backward writes operand {} twice", node_.operation,
                    i);
  written_ |= 1u << i;
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
  if (!muted_) return {slot, !first};
  if (first) slot.fill_zero();
  return {Tensor::empty(slot.shape(), slot.dtype(), slot.device()), false};
}

void Gradients::pass(int i, const Tensor& gradient) {
  Node::Input& input = node_.inputs[i];
  if (!input) return;
  if (input.node && !input.node->gradient.defined()) {
    written_ |= 1u << i;
    input.node->gradient = gradient.detach().view(input.node->shape);
    return;
  }
  const Destination destination = into(i);
  kernels::scale(1, gradient.detach().view(destination.tensor.shape()), destination.tensor,
                 destination.accumulate);
}

}  // namespace detail

}  // namespace lockstep
