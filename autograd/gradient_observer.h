#pragma once
/// Who is told about gradients. Observers are registered on parameters (Parameter::observe), not on
/// a model: you cannot bypass them by calling the model in another way.
///
///     Tape::backward      backward_begins   gradient_ready ... gradient_ready   backward_ends
///     kernels                            |--------- one after another --------|

#include <cstdint>
#include <memory>

namespace lockstep {

class Parameter;
class GradientReducer;

/// What one backward adds to gradients: `weight` / `divisor` times the gradient of its loss.
struct Contribution {
  /// Where the divisor comes from. It says what is left to do when the ranks' contributions have
  /// been summed.
  enum class Divisor : std::uint8_t {
    none,    ///< no gradient is contributed, at most a weight
    given,   ///< the caller knew the total of the weights: nothing is left to do
    ranks,   ///< the number of ranks, for the mean over ranks of their means: nothing is left to do
    summed,  ///< 1: divide the sum by the sum of all weights
  };
  double weight = 1;
  double divisor = 1;
  Divisor kind = Divisor::given;
  bool sync = true;   ///< reducers sum over the ranks at the end of this backward
  bool eager = true;  ///< this reducer may start collectives before the end. Only the first of
                      ///< several may, so that all ranks call them in the same order

  /// True if the sum over the ranks is the mean, without a division at the end.
  bool total_known() const { return kind == Divisor::given || kind == Divisor::ranks; }
};

/// Watches backward. A reducer is an observer; a test can be one.
/// If a call throws, backward ends with that exception, and every observer gets backward_failed.
class GradientObserver {
 public:
  virtual ~GradientObserver() = default;
  /// Before the first backward kernel, if the loss reaches one of the observed parameters.
  /// Parameter::pending() now tells how many contributions each parameter will get: 0 for a
  /// parameter that the loss does not reach.
  virtual void backward_begins(const Contribution&) {}
  /// The last contribution to this parameter's gradient has been written.
  virtual void gradient_ready(const Parameter& parameter) = 0;
  /// After the last kernel. What the observer started must be finished when it returns.
  virtual void backward_ends() {}
  /// Backward was left by an exception, perhaps before it began. Give up what was started.
  virtual void backward_failed() noexcept {}
  /// This observer as a reducer, or null.
  virtual GradientReducer* as_reducer() { return nullptr; }
};

/// An observer that sums gradients over ranks. A parameter has at most one: it *manages* the
/// parameter. The tape asks it how to seed a backward, optimizers ask it whether they may step.
class GradientReducer : public GradientObserver {
 public:
  GradientReducer* as_reducer() final { return this; }

  virtual int ranks() const = 0;  ///< how many ranks' gradients are summed
  /// Its place among the reducers of one backward: the same on all ranks.
  virtual std::int64_t order() const = 0;
  /// True if a backward (that asks to synchronize, if `sync`) is one of several whose total weight
  /// is not known before the last of them: Contribution::Divisor::summed.
  virtual bool in_window(bool sync) = 0;

  /// An optimizer is about to step on this parameter's gradient; with `local`, on this rank's own.
  /// Throws StateError if that would let replicas drift apart.
  virtual void step_begins(const Parameter& parameter, bool local) = 0;
  /// It has stepped; `options` is a digest of how. Replicas that step differently drift apart.
  virtual void stepped(std::uint64_t options) = 0;
  /// True if optimizers step on gradients as soon as they are summed: it is too late to change them.
  virtual bool steps_early() const = 0;
  /// How many times gradients have been summed.
  virtual std::uint64_t synchronizations() const = 0;
};

namespace detail {
struct ParameterState;
}

/// Ends an observation when it is destroyed. Movable, not copyable.
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

}  // namespace lockstep
