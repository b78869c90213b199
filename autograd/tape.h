#pragma once
/// The tape. Operations record on it, in execution order, while it lives. Backward is a loop from
/// its end to its start: no graph search, no recursion.
///
///   Tape tape;                                   // this thread's current tape until it is gone
///   Tensor loss = cross_entropy(linear(x, w, b), y);
///   tape.backward(loss);                         // w.gradient(), b.gradient()
///
///     cross_entropy          3  --> one sweep marks what the loss reaches and counts,
///       ^                            for every parameter, the contributions to come;
///     relu                   2       then the loop runs 3, 2, 1. A parameter whose last
///       ^                            contribution has been written is *ready*: its observers
///     linear <- w, b         1       are told at once, while the loop goes on.
///
/// While no tape lives, nothing is recorded: that is inference. Tapes nest; the innermost records.
/// Saved tensors and gradients of intermediate results are freed as the loop passes them.
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

#include "lockstep/autograd/parameter.h"
#include "lockstep/core/arena.h"
#include "lockstep/core/lanes.h"
#include "lockstep/core/shard.h"
#include "lockstep/core/tensor.h"
#include "lockstep/core/trace/recorder.h"
#include "lockstep/kernels/matmul.h"

namespace lockstep {

class RowSum;
class Tape;

namespace detail {

/// One recorded operation, and also the one value that it produced.
struct Node {
  struct Input {
    Node* node = nullptr;                       // another recorded value, or
    std::shared_ptr<ParameterState> parameter;  // a parameter, or neither: a constant
    bool written = false;                       // by the backward that is running
    explicit operator bool() const { return node || parameter; }
  };
  ~Node() { std::destroy(inputs.begin(), inputs.end()); }

  Node* previous = nullptr;  // recorded before this one
  const char* operation = "";
  enum class Belongs : std::uint8_t { neither, samples, lanes } belongs{};  // see row_sum.h
  Shape shape;
  Device device;
  DType dtype = DType::f32;
  std::span<Input> inputs;  // in the tape's memory
  Tensor gradient;          // undefined until the first contribution
  Tensor losses;            // of each lane, if it belongs to them: see lane_losses.h
  bool reached = false;     // by the loss of the backward that is running
  bool watched = false;     // keeps its gradient
  bool spent = false;       // an earlier backward has freed what it saved
  void (*run)(void* closure, class Gradients&) = nullptr;
  void (*drop)(void* closure) = nullptr;  // destroys the closure and the tensors it saved
  void* closure = nullptr;
};

/// What an operation's backward sees: the gradient of its output, and the places of its inputs'
/// gradients. It writes straight into them: into bucket memory, for a parameter under DDP.
class Gradients {
 public:
  struct Destination {
    Tensor tensor;            // of the input's shape
    bool accumulate = false;  // add to what is there, instead of overwriting it
    explicit operator bool() const { return tensor.defined(); }
  };

  const Tensor& output() const { return node_.gradient; }
  bool needed(int i) const { return static_cast<bool>(input(i)); }  ///< input i wants a gradient
  /// Where input i's contribution is to be written, once; empty if it wants none.
  Destination into(int i);
  /// Input i's contribution is `gradient` itself: its memory is shared where that is safe.
  void pass(int i, const Tensor& gradient);
  void written(int i) { input(i).written = true; }  ///< by other means
  /// This rank has weight 0, and contributes exact zeros. (SyncBatchNorm's backward needs it.)
  bool zero_weight() const { return zero_weight_; }

  // --- second reading: row_sum.h ---
  const Lanes* lanes() const { return lanes_; }  ///< the tape's
  const Lanes* lanes_of_rows() const;            ///< the same, if the output's rows are samples
  bool per_lane() const { return node_.belongs == Node::Belongs::lanes; }
  bool sums_lanes(int i) const;  ///< operand i's gradient is a sum over samples of several lanes

 private:
  friend class lockstep::Tape;
  friend class lockstep::RowSum;
  Gradients(Node& node, const Tape& tape, bool zero_weight, bool lanes_wait);
  Node::Input& input(int i) const;
  Destination place(int i);
  void check_passed(int i, const Tensor& gradient) const;
  Node& node_;
  const Lanes* lanes_;
  bool zero_weight_;
  bool lanes_wait_;  // for the other backwards of their window
};

}  // namespace detail

using detail::Gradients;

struct BackwardOptions {
  bool retain = false;  ///< keep what the operations saved, so that backward can run again
  /// False: reducers only accumulate. This backward and the next one that synchronizes are parts
  /// of one batch (an *accumulation window*); the result is their mean, by their weights.
  bool sync = true;
};

class Tape {
 public:
  /// A tape of `dependencies` only learns what a result depends on, and saves nothing.
  enum class Purpose : std::uint8_t { backward, dependencies };

  explicit Tape(Purpose purpose = Purpose::backward);  ///< current() until it ends
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  /// This thread's innermost living tape, or null.
  static Tape* current();
  /// How the rows of this tape's batch are cut (core/lanes.h); null: it has no lanes.
  const Lanes* lanes() const { return lanes_.get(); }
  bool has_recorded(const Tensor& x) const { return x.gradient_ref().tape == id_; }

  /// Adds d(loss)/d(parameter), times `weight.local / weight.total`, to the gradient of every
  /// parameter that the loss reaches. `loss` has one element and comes from this tape.
  ///
  /// Without a weight it is {1, ranks} where the loss reaches managed parameters (the mean over
  /// ranks of their means), and {1, 1} elsewhere. A rank of local weight 0 contributes exact zeros,
  /// even if its values are NaN. If the total is not known, reducers divide when they know it;
  /// where there is no reducer, the weight is {1, 1}.
  ///
  /// Throws StateError for a loss of another or no tape, or one that an earlier backward used up;
  /// if it reaches both a managed parameter and one that is neither managed nor kept local (which
  /// would differ between ranks). If an operation or an observer throws, gradients are undefined.
  void backward(const Tensor& loss, std::optional<Weight> weight = {},
                BackwardOptions options = {});
  void backward(const Tensor& loss, BackwardOptions options) { backward(loss, {}, options); }

  /// Records an operation and returns `output` as its value. `inputs` are those of its operands
  /// that may want gradients. Each backward calls `backward(Gradients&)` once; it must write each
  /// gradient that is needed.
  template <class F>
  Tensor record(const char* operation, Tensor output, std::span<const Tensor* const> inputs,
                F backward);

  // --- second reading: tape_nested.cpp ---

  /// A handle to the same elements. This tape computes and keeps its gradient: see gradient().
  Tensor watch(const Tensor& tensor);
  /// The gradient of a watched tensor after backward, times the seed (w / total, as for parameters:
  /// with R ranks and no Weight 1 / R); undefined if the loss did not reach it.
  Tensor gradient(const Tensor& watched) const;
  /// The parameters that a result of this tape depends on, each once.
  std::vector<Parameter> parameters_of(const Tensor& result);
  /// Call it within the backward of an operation of an outer tape, to which `outer` belongs. It
  /// continues into what this tape recorded, from `result`, whose gradient is outer.output().
  /// `declared` are the parameters among the outer operation's inputs. Throws StateError unless
  /// they are those that `result` depends on.
  void continue_backward(const Tensor& result, const Gradients& outer,
                         std::span<const Parameter> declared);

 private:
  struct Pass;

  detail::Node* append(const char* operation, const Tensor& output,
                       std::span<const Tensor* const> inputs);
  detail::Node* new_node(const char* operation, const Tensor& output);
  detail::Node* node_of(const char* operation, const Tensor& tensor) const;
  void mark(Pass& pass);
  void link_observers(Pass& pass, const Parameter& parameter);
  void begin(Pass& pass, std::optional<Weight> weight, BackwardOptions options) const;
  static Contribution contribution(const Pass& pass, std::optional<Weight> weight, bool sync);
  void run(Pass& pass, bool retain);
  static void tell_ready(detail::Node& node);
  void note_lanes(detail::Node& node, const Tensor& output,
                  std::span<const Tensor* const> inputs) const;
  void seed_lanes(Pass& pass, const std::optional<Weight>& weight, Contribution& told) const;
  void clear_marks() noexcept;

  std::uint64_t id_;
  Purpose purpose_;
  Tape* outer_;
  std::shared_ptr<const Lanes> lanes_;
  std::optional<kernels::ChainProducts> chains_;  // with lanes: rows are multiplied apart
  detail::Node* last_ = nullptr;
  detail::Arena arena_;
};

Tensor keep_samples(Tensor output, std::span<const Tensor* const> inputs);  ///< lanes/row_sum.h

/// Records `output` on the current tape, if there is one and an input wants a gradient.
template <class F>
Tensor record(const char* operation, Tensor output, std::initializer_list<const Tensor*> inputs,
              F backward) {
  trace::forward_ends(operation);
  Tape* tape = Tape::current();
  return tape ? tape->record(operation, std::move(output), std::span(inputs), std::move(backward))
              : keep_samples(std::move(output), std::span(inputs));
}

template <class F>
Tensor Tape::record(const char* operation, Tensor output, std::span<const Tensor* const> inputs,
                    F backward) {
  detail::Node* node = append(operation, output, inputs);
  if (!node) return keep_samples(std::move(output), inputs);
  output.set_gradient_ref({id_, node});
  if (purpose_ == Purpose::dependencies) return output;
  static_assert(alignof(F) <= alignof(std::max_align_t));
  node->closure = new (arena_.allocate(sizeof(F))) F(std::move(backward));
  node->run = [](void* closure, Gradients& gradients) { (*static_cast<F*>(closure))(gradients); };
  node->drop = [](void* closure) { static_cast<F*>(closure)->~F(); };
  return output;
}

}  // namespace lockstep
