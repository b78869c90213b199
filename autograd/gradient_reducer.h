#pragma once
/// What the tape and optimizers ask of an observer that sums gradients over ranks.

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/autograd/gradient_observer.h"
#include "lockstep/core/tensor.h"
#include "lockstep/kernels/fingerprint.h"

namespace lockstep {

/// What an optimizer keeps of a parameter: "momentum", "mean", "step".
struct StateTensor {
  std::string name;
  Tensor value;
};

/// An optimizer, as reducers see it.
class Stepper {
 public:
  virtual ~Stepper() = default;
  /// What it keeps of `parameter` from step to step; nothing for a parameter that it does not step.
  virtual std::vector<StateTensor> state_of(const Parameter& parameter) const = 0;
  /// Its options, a line each, for an error that says where ranks differ.
  virtual std::string options_text() const { return ""; }
  /// Begins anew with `parameter`, as before its first step.
  virtual void forget(const Parameter& /*parameter*/) {}
};

/// An observer that sums gradients over ranks. A parameter has at most one: it *manages* the
/// parameter. The tape asks it how to seed a backward, optimizers ask it whether they may step.
class GradientReducer : public GradientObserver {
 public:
  GradientReducer* as_reducer() final { return this; }
  bool replayable() const override { return true; }  // the collectives are recorded

  virtual int ranks() const = 0;  ///< how many ranks' gradients are summed
  /// Its place among the reducers of one backward: the same on all ranks.
  virtual std::int64_t order() const = 0;
  /// True if a backward (that asks to synchronize, if `sync`) is one of several whose total weight
  /// is not known before the last of them: Contribution::Divisor::summed.
  virtual bool in_window(bool sync) = 0;
  /// The sum of the weights of this window's backwards so far.
  virtual double window_weight() const = 0;

  /// An optimizer is about to step on this parameter's gradient; with `local`, on this rank's own.
  /// Throws StateError if that would let replicas drift apart.
  virtual void step_begins(const Parameter& parameter, bool local) = 0;
  /// Where the step on this parameter adds the fingerprint of what it leaves in the parameter and
  /// in the optimizer's state: the ranks compare the sum of all. Nowhere if they do not. A step on
  /// a `part`, which other ranks do not take, adds nothing to the sum.
  virtual kernels::Fingerprint fingerprint(const Parameter& parameter, bool part) = 0;
  /// An optimizer has stepped on some of the parameters; with `local`, on this rank's own
  /// gradients. `options` is a digest of how.
  virtual void stepped(const std::weak_ptr<Stepper>& stepper, std::uint64_t options,
                       bool local) = 0;
  /// A parameter is frozen, or no longer: on all ranks between the same two backwards.
  virtual void requires_grad_changes(const Parameter& /*parameter*/, bool /*yes*/) {}
  /// Whether the ranks gave up the gradients of the last synchronization (NonFinite::skip).
  virtual bool gave_up() const = 0;
  /// Rises each time gradients have been summed, above what any reducer of this process had before;
  /// 0 at first.
  virtual std::uint64_t synchronizations() const = 0;

 protected:
  /// For synchronizations(). No two reducers of a process get the same number: an optimizer may
  /// outlive a reducer, and must take the next reducer's first sum for a new one.
  static std::uint64_t next_synchronization() {
    static std::atomic<std::uint64_t> last{0};
    return ++last;
  }
};

}  // namespace lockstep
