#pragma once
/// A trainable tensor: a name, a value, a gradient slot, and whoever wants to know when its
/// gradient is ready. A Parameter is a handle: copies are the same parameter, and its identity
/// never changes, however its value or its gradient's memory moves.
///
/// Thread-safety: a parameter belongs to one rank and is used by one thread at a time.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/tensor.h"

namespace lockstep {

class Parameter;

/// What the memory of a gradient holds.
enum class GradientState : std::uint8_t {
  nothing,       ///< no gradient: the next contribution overwrites
  local,         ///< this rank's own; not yet reduced
  synchronized,  ///< reduced: the same bits on every rank
};

/// What one backward adds to gradients: `weight` / `divisor` times the gradient of its loss.
struct Contribution {
  /// Where the divisor comes from, and so what is still to be done when the ranks' contributions
  /// have been summed.
  enum class Divisor : std::uint8_t {
    none,    ///< no gradient is contributed, at most a weight
    given,   ///< the caller knew the total of the weights
    ranks,   ///< the number of ranks: the mean over ranks of their means
    summed,  ///< 1: the sum is to be divided by the sum of all weights
  };
  double weight = 1;
  double divisor = 1;
  Divisor kind = Divisor::given;
  bool sync = true;   ///< observers that sum over ranks do so at the end of this backward
  bool eager = true;  ///< this observer may begin before: only the first of several may, so that
                      ///< all ranks have the same order
};

/// Watches backward. A reducer is one; so is a test. Registered on parameters (Parameter::observe),
/// not on a model, so that no way of calling the model can go round it.
class GradientObserver {
 public:
  virtual ~GradientObserver() = default;
  /// Before the first backward kernel, if the loss reaches one of the observed parameters.
  /// Parameter::pending() now tells how many contributions each parameter will get; 0 for a
  /// parameter that the loss does not reach.
  virtual void backward_begins(const Contribution&) {}
  /// The last contribution to this parameter's gradient has been written.
  virtual void gradient_ready(const Parameter& parameter) = 0;
  /// After the last kernel. What the observer started must be finished when it returns.
  virtual void backward_ends() {}
  /// Backward was left by an exception, perhaps before it began. What the observer started must be
  /// given up.
  virtual void backward_failed() noexcept {}

  /// The number of ranks whose gradients are summed, or 0 if this observer does not sum any.
  virtual int summed_ranks() const { return 0; }
  /// Where this observer stands among those of one backward: the same on all ranks.
  virtual std::int64_t order() const { return 0; }
  /// True if a backward (that asks to synchronize, if `sync`) is one of several whose total weight
  /// is not known before the last of them: Contribution::Divisor::summed.
  virtual bool in_window(bool /*sync*/) { return false; }

  /// An optimizer is about to step on this parameter's gradient; with `local`, on this rank's own.
  /// Throws StateError if that would let replicas drift apart.
  virtual void step_begins(const Parameter&, bool /*local*/) {}
  /// It has stepped; `options` is a digest of how. Replicas that step differently drift apart.
  virtual void stepped(std::uint64_t /*options*/) {}
  /// True if optimizers step on gradients as soon as they are summed: too late to change them.
  virtual bool steps_early() const { return false; }
  /// How often gradients have been summed so far.
  virtual std::uint64_t synchronizations() const { return 0; }
};

namespace detail {
struct ParameterState;
class Gradients;
}  // namespace detail

/// Ends an observation when it goes out of scope.
class [[nodiscard]] Observation {
 public:
  Observation() = default;
  Observation(std::shared_ptr<detail::ParameterState> state, GradientObserver* observer)
      : state_(std::move(state)), observer_(observer) {}
  Observation(Observation&& other) noexcept = default;
  Observation& operator=(Observation&& other) noexcept;
  ~Observation();

 private:
  std::shared_ptr<detail::ParameterState> state_;
  GradientObserver* observer_ = nullptr;
};

class Parameter {
 public:
  /// Undefined; a Linear without bias has one. It converts to an undefined tensor; the functions below
  /// throw StateError, except defined(), == and id().
  Parameter() = default;
  /// Throws StateError for an undefined value, DTypeError for one that is neither f32 nor f64.
  explicit Parameter(const Tensor& value, std::string name = {});

  bool defined() const { return state_ != nullptr; }
  bool operator==(const Parameter& other) const { return state_ == other.state_; }
  const void* id() const { return state_.get(); }  ///< to look a parameter up by

  /// For messages and checkpoints; set by Module::parameters() to the path in the model:
  /// "2.weight".
  const std::string& name() const;
  void set_name(std::string name) const;

  /// The elements, outside any tape: to read, to initialize, to step.
  const Tensor& value() const;
  /// Moves the elements to another device; the gradient, if there was one, is lost. Throws
  /// StateError while a reducer observes the parameter. Before an optimizer is made: its state lies
  /// where the values are.
  void move_to(Device device) const;
  /// The same elements as an operand: operations on it are recorded if it requires a gradient. Such
  /// a tensor must not outlive the parameter.
  operator Tensor() const;  // NOLINT: a parameter is used like a tensor

  bool requires_grad() const;
  void set_requires_grad(bool requires_grad) const;

  /// The gradient; undefined while there is none.
  Tensor gradient() const;
  GradientState gradient_state() const;
  void set_gradient_state(GradientState state) const;
  /// Only sets "the next contribution overwrites": the memory stays where it is.
  void zero_grad() const { set_gradient_state(GradientState::nothing); }

  /// The gradient's memory, whatever it holds; allocated at the first call unless it was placed.
  const Tensor& gradient_slot() const;
  /// Gives the gradient its memory, of the value's shape and dtype: from now on backward writes
  /// there. An undefined tensor returns it to memory of its own. What the slot held is lost. Throws
  /// StateError while a reducer observes the parameter.
  void place_gradient(Tensor slot) const;

  /// During backward: how many contributions are still to come.
  int pending() const;

  /// `observer` must outlive the returned Observation.
  Observation observe(GradientObserver& observer) const;
  /// True while a reducer observes this parameter: its gradient is to be synchronized before a
  /// step.
  bool managed() const;
  const std::vector<GradientObserver*>& observers() const;

  /// This parameter is meant to differ between ranks: a loss may reach it beside parameters under a
  /// reducer. (Without this, backward takes one that is under no reducer for a mistake.) Its
  /// gradient is what backward seeds: that of the loss times weight / total. Where the total is
  /// still to be summed there is no such number, and backward throws StateError.
  void keep_local() const;
  bool kept_local() const;

 private:
  friend class Tape;
  friend class detail::Gradients;
  explicit Parameter(std::shared_ptr<detail::ParameterState> state) : state_(std::move(state)) {}
  detail::ParameterState& existing(std::string_view call) const;  // throws if there is none
  std::shared_ptr<detail::ParameterState> state_;
};

/// Tensors of a model that are not trained (running statistics), with their names.
struct Buffer {
  std::string name;
  Tensor value;
};

namespace detail {
struct ParameterState : std::enable_shared_from_this<ParameterState> {
  std::string name;
  Tensor value;
  Tensor slot;
  GradientState state = GradientState::nothing;
  bool requires_grad = true;
  bool kept_local = false;
  int pending = 0;
  std::vector<GradientObserver*> observers;
};
}  // namespace detail

}  // namespace lockstep
