#pragma once
/// Who is told about gradients. Observers are registered on parameters (Parameter::observe), not on
/// a model: you cannot bypass them by calling the model in another way.
///
///     observer   backward_begins         gradient_ready        gradient_ready   backward_ends
///     kernels                   | k | k |              | k |

#include <cstdint>
#include <memory>

#include "lockstep/core/shard.h"

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
/// Example: a rank with 32 of all ranks' 128 rows has weight 32 and divisor 128 (given).
struct Contribution {
  /// Where the divisor comes from. It decides what must be done after the sum over the ranks. (If
  /// some ranks have no data, the sum is corrected whatever the divisor is.)
  enum class Divisor : std::uint8_t {
    none,    ///< no gradient is contributed, perhaps a weight
    given,   ///< the caller knew the total of the weights: nothing
    ranks,   ///< the number of ranks, for the mean over ranks of their means: nothing
    summed,  ///< the divisor is 1 for now: the sum is divided by the sum of all weights
  };
  double weight = 1;
  double divisor = 1;
  Divisor kind = Divisor::given;
  bool sync = true;   ///< when this backward ends, reducers have summed the gradients
  bool eager = true;  ///< the reducer may start collectives before backward ends. Only the first of
                      ///< several reducers may, so that all ranks use the same order
  BatchOrigin origin = {};  ///< Weight::origin
  int lanes = 0;            ///< of the batch. The ranks add up their gradients in the lanes' tree
  double window = -1;       ///< the weights in the window of the reducer before; -1: there is none

  /// True if the sum over the ranks is the mean, where all ranks have data.
  bool total_known() const { return kind == Divisor::given || kind == Divisor::ranks; }
};

/// Watches backward. A reducer is an observer; a test can be one. Observers that are no reducers
/// are told after the reducers: in backward_ends they see gradients that are summed. If a call
/// throws, backward ends with that exception, and every observer gets backward_failed.
class GradientObserver {
 public:
  virtual ~GradientObserver() = default;
  /// Before the first backward kernel, if the loss reaches one of the observed parameters.
  /// Parameter::pending() now tells how many contributions each parameter will get: 0 for a
  /// parameter that the loss does not reach.
  virtual void backward_begins(const Contribution&) {}
  /// The last contribution to this parameter's gradient has been written (on a GPU: its kernel is
  /// in the current stream).
  virtual void gradient_ready(const Parameter& parameter) = 0;
  /// After the last kernel. When it returns, what the observer started is finished (on a GPU: comes
  /// before what follows in the current stream).
  virtual void backward_ends() {}
  /// Backward was left by an exception, perhaps before it began. Give up what was started.
  virtual void backward_failed() noexcept {}
  /// This observer as a reducer, or null.
  virtual GradientReducer* as_reducer() { return nullptr; }
};

/// The observation ends when its last copy is destroyed.
using Observation = std::shared_ptr<const void>;

}  // namespace lockstep
