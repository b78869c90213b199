#pragma once
/// The tape. Operations record on it, in execution order, while it lives. Backward is a loop from
/// its end to its start: no graph search, no recursion.
///
///   Tape tape;                                   // this thread's current tape until it is gone
///   Tensor loss = cross_entropy(model(x), y);    // three linear layers: parameters 0.w ... 4.b
///   tape.backward(loss);                         // the gradients of 0.w ... 4.b
///
///     operation   1 linear_relu  2 linear_relu  3 linear  4 cross_entropy
///     uses        0.w 0.b        2.w 2.b        4.w 4.b
///
/// Backward first marks, in one sweep, what the loss reaches, and counts the contributions to come
/// for every parameter. Then the loop runs 4, 3, 2, 1. A parameter whose last contribution has
/// been written is *ready*: its observers are told at once, while the loop goes on.
///
/// While no tape lives, nothing is recorded: that is inference. Tapes nest, and end in any order;
/// the innermost records. Saved tensors and gradients of intermediate results are freed as the loop
/// passes them, and then the records themselves, so that a tape may live for many steps. (What no
/// backward reaches, and watched tensors, stay as long as the tape; the memory of its records, some
/// 200 bytes for an operation, returns when none is left, with lanes when the tape ends.)
///
/// Thread-safety: the current tape is per thread, so that ranks can be threads. Only the thread
/// that made a tape may use it.

#include <cstdint>
#include <initializer_list>
#include <new>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/autograd/gradients.h"
#include "lockstep/core/arena.h"
#include "lockstep/core/shard.h"
#include "lockstep/core/system/thread_scope.h"
#include "lockstep/core/tensor.h"
#include "lockstep/core/trace/recorder.h"
#include "lockstep/kernels/matmul.h"

namespace lockstep {

struct BackwardOptions {
  bool retain = false;  ///< keep what the operations saved, so that backward can run again
  /// False: reducers only accumulate. This backward and the next synchronizing backward are parts
  /// of one batch (an *accumulation window*); the result is their mean, by their weights. Where
  /// there is no reducer, there is no window: gradients are added up.
  bool sync = true;
};

class Tape : public ThreadScope<Tape> {
 public:
  /// A tape of `dependencies` only learns what a result depends on, and saves nothing.
  enum class Purpose : std::uint8_t { backward, dependencies };

  explicit Tape(Purpose purpose = Purpose::backward);  ///< current() until it ends
  ~Tape();

  static Tape* current() { return innermost(); }  ///< this thread's innermost living tape, or null
  /// How the rows of this tape's batch are cut (core/lanes.h); null: it has no lanes.
  const Lanes* lanes() const { return lanes_.get(); }
  bool has_recorded(const Tensor& x) const {  // and not freed
    return x.gradient_ref().tape == id_ && x.gradient_ref().generation == generation_;
  }

  /// Adds d(loss)/d(parameter), times `weight.local / weight.total`, to the gradient of every
  /// parameter that the loss reaches. `loss` has one element and comes from this tape.
  ///
  /// Without a weight it is {1, ranks} where the loss reaches managed parameters (the mean over
  /// ranks of their means), and {1, 1} elsewhere. A rank of local weight 0 contributes exact zeros,
  /// even if its values are NaN. If the total is not known, reducers divide when they know it;
  /// where there is no reducer, the weight is {1, 1}.
  ///
  /// Throws StateError for a loss of another or no tape, or a loss that an earlier backward used
  /// up; if it reaches both a managed parameter and a parameter that is neither managed nor kept
  /// local (which would differ between ranks). If an operation or an observer throws, gradients are
  /// undefined.
  void backward(const Tensor& loss, std::optional<Weight> weight = {},
                BackwardOptions options = {});
  void backward(const Tensor& loss, BackwardOptions options) { backward(loss, {}, options); }

  /// Records an operation and returns `output` as its value. Each operand says what it does with
  /// rows (rows.h). Each backward calls `backward(Gradients&)` once (with lanes, perhaps for each
  /// of them); it must write each gradient that is needed. If it begins with before_relu(*relu),
  /// it has a SavedTensor of that name, of the output: see Gradients::into_relu().
  template <class F>
  Tensor record(const char* operation, Tensor output, std::span<const Operand> operands, F backward,
                Makes makes = Makes::rows);

  // --- second reading: tape_nested.cpp ---

  /// A handle to the same elements, of any tensor. This tape computes and keeps the gradient of
  /// what is made of the handle: see gradient().
  Tensor watch(const Tensor& tensor);
  /// The gradient of a watched tensor, of the last backward that reached it, times the seed (w /
  /// total, as for parameters: with R ranks and no Weight 1 / R); undefined if none did. On this
  /// tape no operation is recorded with it or with what was made of it, nor with gradients of
  /// parameters (StateError): there are no second derivatives. detach() makes it a constant, and
  /// so does writing it into other memory (`sum += gradient`).
  Tensor gradient(const Tensor& watched) const;
  /// The parameters that a result of this tape depends on, each once.
  std::vector<Parameter> parameters_of(const Tensor& result);
  /// Call it within the backward of an operation of an outer tape, to which `outer` belongs. It
  /// continues into what this tape recorded, from `result`, whose gradient is outer.output().
  /// `declared` are the parameters among the outer operation's inputs. Throws StateError unless
  /// `result` depends on exactly these.
  void continue_backward(const Tensor& result, const Gradients& outer,
                         std::span<const Parameter> declared);

 private:
  struct Pass;

  detail::Node* append(const char* operation, Tensor& output, std::span<const Operand> operands,
                       Makes makes);
  bool wants_node(const char* operation, Tensor& output, std::span<const Operand> operands,
                  Makes makes) const;
  void refuse_gradients(const char* operation, std::span<const Operand> operands) const;
  const GradientRef& own_ref(const char* operation, const Tensor& tensor) const;
  bool used_up(const GradientRef& ref) const;
  [[noreturn]] void refuse_used_up(const char* operation, const GradientRef& ref) const;
  void begin_generation();
  void drop_spent(detail::Node* first);
  detail::Node* new_node(const char* operation, const Tensor& output);
  detail::Node* node_of(const char* operation, const Tensor& tensor) const;
  void mark(Pass& pass);
  void link_observers(Pass& pass, const Parameter& parameter);
  void begin(Pass& pass, std::optional<Weight> weight, BackwardOptions options) const;
  static Contribution contribution(const Pass& pass, std::optional<Weight> weight, bool sync);
  void run(Pass& pass, bool retain);
  static void tell_ready(detail::Node& node);
  void clear_marks() noexcept;

  std::uint64_t id_;
  Purpose purpose_;
  std::shared_ptr<const Lanes> lanes_;
  std::optional<kernels::ChainProducts> chains_;  // with lanes: rows are multiplied apart
  std::uint64_t generation_ = 0;
  detail::Node* last_ = nullptr;
  detail::Arena arena_;
};

/// Records `output` on the current tape, if there is one and an operand wants a gradient.
template <class F>
Tensor record(const char* operation, Tensor output, std::span<const Operand> operands, F backward,
              Makes makes = Makes::rows) {
  trace::forward_ends(operation);
  if (Tape* const tape = Tape::current())
    return tape->record(operation, std::move(output), operands, std::move(backward), makes);
  detail::mark_rows(operation, output, operands);
  return output;
}
template <class F>
Tensor record(const char* operation, Tensor output, std::initializer_list<Operand> operands,
              F backward, Makes makes = Makes::rows) {
  return record(operation, std::move(output), std::span(operands), std::move(backward), makes);
}

template <class F>
Tensor Tape::record(const char* operation, Tensor output, std::span<const Operand> operands,
                    F backward, Makes makes) {
  detail::Node* node = append(operation, output, operands, makes);
  if (!node || purpose_ == Purpose::dependencies) return output;
  static_assert(alignof(F) <= alignof(std::max_align_t));
  F* const kept = new (arena_.allocate(sizeof(F))) F(std::move(backward));
  node->closure = kept;
  if constexpr (requires { kept->relu; }) node->relu = &kept->relu;
  node->run = [](void* closure, Gradients& gradients) { (*static_cast<F*>(closure))(gradients); };
  node->drop = [](void* closure) { static_cast<F*>(closure)->~F(); };
  return output;
}

}  // namespace lockstep
