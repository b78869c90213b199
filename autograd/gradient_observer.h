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

/// What the memory of a gradient holds.
enum class GradientState : std::uint8_t {
  nothing,       ///< no gradient: the next contribution overwrites
  local,         ///< this rank's own, not yet reduced
  synchronized,  ///< reduced: the same bits on every rank
};

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

/// Ends the observation when its last copy is gone.
using Observation = std::shared_ptr<const void>;

}  // namespace lockstep
