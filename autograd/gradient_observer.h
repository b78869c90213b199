#pragma once
/// Who is told about gradients. Observers are registered on parameters (Parameter::observe), not on
/// a model: you cannot bypass them by calling the model in another way.
///
///     kernels                      | 4.w 4.b |                | 2.w 2.b | ... |
///     observers   backward_begins             ready 4.w, 4.b              ...   backward_ends
///
/// Words: a *weight* says how much a rank's batch counts in the mean; its *origin* says which batch
/// that is (core/shard.h). Skip *lanes* at first: they are equal parts of a batch, which are summed
/// apart (core/lanes.h). Most training has none. So skip what has lane, Rows or Row in its name.

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
  /// Where the divisor comes from, and what remains to be done after the sum over the ranks. (Ranks
  /// without data can add a correction: decide_step in dist/ddp/step_metadata.cpp.)
  enum class Divisor : std::uint8_t {
    none,    ///< this backward adds no gradient; it may add a weight
    given,   ///< the total of the weights, which the caller knew. Nothing remains
    ranks,   ///< the number of ranks: the mean over ranks of their means. Nothing remains
    summed,  ///< 1, because no rank knows the total: the sum is divided by the sum of all weights
  };
  double weight = 1;              ///< how much this rank's batch counts
  double divisor = 1;             ///< what the weight is divided by before the sum over the ranks
  Divisor kind = Divisor::given;  ///< where `divisor` comes from
  bool sync = true;               ///< reducers sum in this backward; false: they only accumulate
  bool eager = true;  ///< the reducer may start collectives before backward ends. Only the first of
                      ///< several reducers may, so that all ranks use the same order
  BatchOrigin origin = {};  ///< which batch this is, for comparison between the ranks
  int lanes = 0;            ///< into how many lanes the batch of all ranks is cut; 0: none
  double window = -1;       ///< the sum of weights in the previous reducer's accumulation window,
                            ///< which this reducer compares with its sum; -1: no previous reducer

  /// True if the sum over the ranks is the mean, where all ranks have data.
  bool total_known() const { return kind == Divisor::given || kind == Divisor::ranks; }
};

/// Watches backward. A reducer is an observer; a test can be one. Observers that are no reducers
/// are told of its begin and its end after the reducers: the gradients are summed then. If a call
/// throws, backward ends with that exception, and every observer gets backward_failed.
class GradientObserver {
 public:
  virtual ~GradientObserver() = default;
  /// Before the first backward kernel, if the loss reaches one of the observed parameters.
  /// Parameter::uses_left() now tells how many contributions each will get: 0 if not reached.
  virtual void backward_begins(const Contribution&) {}
  /// The last contribution to its gradient is written (on a GPU: a kernel in the current stream).
  virtual void gradient_ready(const Parameter& parameter) = 0;
  /// After the last kernel. When it returns, what the observer started is finished (on a GPU: comes
  /// before what follows in the current stream).
  virtual void backward_ends() {}
  /// Backward was left by an exception, perhaps before it began. Give up what was started.
  virtual void backward_failed() noexcept {}
  /// Whether recorded steps may have it: their replays (core/gpu/graph.h) do not call it.
  virtual bool replayable() const { return false; }
  /// This observer as a reducer, or null.
  virtual GradientReducer* as_reducer() { return nullptr; }
};

/// The observation ends when its last copy is destroyed.
using Observation = std::shared_ptr<const void>;

}  // namespace lockstep
