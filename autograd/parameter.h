#pragma once
/// A trainable tensor: a name, a value, a gradient slot, and the observers of its gradient. A
/// Parameter is a handle: copies are the same parameter. Its identity never changes, even if its
/// value or its gradient's memory moves.
///
/// Errors: every call on an undefined parameter except defined(), id(), == and the conversion to
/// Tensor throws StateError. Thread-safety: a parameter belongs to one rank; one thread uses it at
/// a time.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/autograd/gradient_observer.h"
#include "lockstep/core/gpu/graph.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

namespace detail {
struct ParameterState : std::enable_shared_from_this<ParameterState> {
  std::string name;
  Tensor value;
  Tensor slot;
  std::uint64_t gradient_of = GradientRef::nothing;  // the tape that has written to it last
  GradientState state = GradientState::nothing;
  bool requires_grad = true;
  bool kept_local = false;
  bool replicated = false;
  bool optimized = false;
  bool unstepped = false;
  bool averaged = false;
  std::uint64_t listed = 0;  // by which call of check_each_once
  bool lanes_wait = false;   // `lanes` holds what the slot is made of
  Tensor lanes{};            // row_sum.h
  int uses_left = 0;         // in the backward that is running: contributions still to come
  std::vector<GradientObserver*> observers{};
  GradientReducer* reducer = nullptr;  // one of the observers
};
class Gradients;
}  // namespace detail

class LaneRecord;

class Parameter {
 public:
  Parameter() = default;  ///< undefined; a Linear without bias has one
  /// Throws StateError for an undefined value, DTypeError for a value that is neither f32 nor f64.
  explicit Parameter(const Tensor& value, std::string name = {});

  bool defined() const { return state_ != nullptr; }  ///< false for Parameter()
  /// Whether both are handles of the same parameter.
  bool operator==(const Parameter& other) const { return state_ == other.state_; }
  const void* id() const { return state_.get(); }  ///< to look a parameter up by

  /// For messages and checkpoints. Module::parameters() sets it to the path in the model:
  /// "2.weight".
  const std::string& name() const { return state("name").name; }
  void set_name(std::string name) const;
  /// What messages print of it: "'2.weight'", or "a parameter of shape (3, 4) that no visit()
  /// names". A Parameter is formatted so.
  std::string label() const;

  /// The elements, outside any tape: to read, to initialize, to step.
  const Tensor& value() const { return state("value").value; }
  /// Moves the elements to another device. The gradient, if there was one, is lost. Call it before
  /// an optimizer is made: the optimizer's state lies where the values were, and its next step
  /// throws StateError. So does this while a reducer manages the parameter.
  void move_to(Device device) const;
  /// Moves the elements into `memory`, of the value's shape, dtype and device; an undefined tensor
  /// gives them their own memory. Code that holds the old value does not see later changes;
  /// optimizers follow.
  void place_value(const Tensor& memory) const;
  /// The same elements as an operand: operations on it are recorded if it requires a gradient.
  /// Such a tensor must not outlive the parameter.
  operator Tensor() const;  // NOLINT: a parameter is used like a tensor

  /// At first true.
  bool requires_grad() const { return state("requires_grad").requires_grad; }
  /// Whether backward computes its gradient. Of a managed one: the same on all ranks.
  void set_requires_grad(bool yes) const;

  /// The gradient; undefined while there is none.
  Tensor gradient() const;
  GradientState gradient_state() const { return state("gradient_state").state; }
  void set_gradient_state(GradientState now) const;
  /// Sets only "the next contribution overwrites": the memory stays where it is.
  void zero_grad() const { set_gradient_state(GradientState::nothing); }

  /// The gradient's memory, also if it holds nothing. Unless it was placed, the first call
  /// allocates it.
  const Tensor& gradient_slot() const;
  /// Gives the gradient its memory, of the value's shape, dtype and device: backward writes there.
  /// An undefined tensor gives it separate memory again. What the slot held is lost. Throws
  /// StateError while a reducer manages the parameter.
  void place_gradient(Tensor slot) const;

  /// During backward: how many uses of this parameter have not written their contribution yet.
  int uses_left() const { return state("uses_left").uses_left; }

  /// `observer` must outlive the returned Observation. Throws StateError for a second reducer.
  [[nodiscard]] Observation observe(GradientObserver& observer) const;
  /// The reducer that manages this parameter, or null: then its gradient is never summed over
  /// ranks. A managed gradient must be synchronized before a step.
  GradientReducer* reducer() const { return state("reducer").reducer; }
  bool managed() const { return reducer() != nullptr; }

  /// This parameter is meant to differ between ranks: a loss may reach it beside managed ones.
  /// (Without this call, backward takes an unmanaged parameter for a mistake.) Its gradient is that
  /// of the loss times weight / total. Where the total is not known when backward begins, backward
  /// throws StateError.
  void keep_local() const { state("keep_local").kept_local = true; }
  bool kept_local() const { return state("kept_local").kept_local; }

  /// All ranks have this parameter, with the same value: said by reducers, and by DDP of frozen
  /// parameters. Optimizers then refuse it while no reducer manages it.
  void set_replicated() const { state("set_replicated").replicated = true; }
  bool replicated() const { return state("replicated").replicated; }

  /// An optimizer has been made for this parameter: said by optimizers. Beside such parameters,
  /// backward assumes that a module's visit() leaves out a parameter without a name and without an
  /// optimizer.
  void set_optimized() const { state("set_optimized").optimized = true; }
  bool optimized() const { return state("optimized").optimized; }

  /// An optimizer has not stepped yet on all that the gradient holds: said by optimizers, which
  /// watch backward. A checkpoint would lose it. False without a gradient.
  bool unstepped() const {
    return state("unstepped").unstepped && state_->state != GradientState::nothing;
  }
  void set_unstepped(bool yes) const { state("set_unstepped").unstepped = yes; }

  /// The value is an average for a while (optim::Ema::Applied): optimizers do not step it, and
  /// checkpoints do not take it for the parameter.
  bool averaged() const { return state("averaged").averaged; }
  void set_averaged(bool yes) const { state("set_averaged").averaged = yes; }

 private:
  friend class Tape;
  friend class detail::Gradients;
  friend class LaneRecord;
  friend void check_each_once(std::string_view, const std::vector<Parameter>&);
  explicit Parameter(std::shared_ptr<detail::ParameterState> state) : state_(std::move(state)) {}
  detail::ParameterState& state(const char* call) const {
    if (!state_) [[unlikely]]
      throw_undefined(call);
    if (StepGraph::noting()) [[unlikely]]
      note_in_step();
    return *state_;
  }
  /// A step that is recorded depends on what it reads here.
  void note_in_step() const;
  [[noreturn]] static void throw_undefined(const char* call);
  void check_memory(std::string_view what, const Tensor& memory) const;

  std::shared_ptr<detail::ParameterState> state_;
};

/// What every function that takes a list of parameters asks of it: each is defined and stands there
/// once, as in Module::parameters(). A tied weight that counted twice would be stepped, averaged or
/// measured twice. Throws UsageError, which names `operation` and the parameter. Allocates nothing.
void check_each_once(std::string_view operation, const std::vector<Parameter>& parameters);

/// How messages name parameter i of a list: "'2.weight'", or "parameter 2 (unnamed, of shape (3,
/// 4))".
std::string label_of(const std::vector<Parameter>& parameters, std::size_t i);

/// parameter.label().
inline std::string to_string(const Parameter& parameter) { return parameter.label(); }

/// The SHA-256 of all values, in order, as raw little-endian bytes: replicas have the same. Throws
/// as check_each_once.
std::string parameter_digest(const std::vector<Parameter>& parameters);

/// A tensor of a model that is not trained (running statistics), with its name.
struct Buffer {
  std::string name;
  Tensor value;
};

}  // namespace lockstep

template <>
struct fmt::formatter<lockstep::Parameter> : lockstep::TextFormatter {};
