#pragma once
/// What the tape and optimizers ask of an observer that sums gradients over ranks.

#include "lockstep/autograd/gradient_observer.h"

namespace lockstep {

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
  /// True if optimizers step on gradients as soon as they are summed: it is too late to change
  /// them.
  virtual bool steps_early() const = 0;
  /// How many times gradients have been summed.
  virtual std::uint64_t synchronizations() const = 0;
};

}  // namespace lockstep
