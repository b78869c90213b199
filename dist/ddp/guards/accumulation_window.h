#pragma once
/// The backwards between two synchronizations: one *accumulation window*.
///
/// A backward that does not synchronize (BackwardOptions::sync, or NoSync) opens a window. The next
/// synchronizing backward closes it. All backwards of a window, on all ranks, are parts of one
/// batch. The result is the mean over them by their weights w, with g the gradient of each part:
///
///     sum over ranks and parts of w g  /  sum over ranks and parts of w
///
/// A backward that synchronizes while no window is open is a window of one part.
///
/// Thread-safety: as Parameter.

#include <vector>

#include "lockstep/autograd/parameter.h"
#include "lockstep/dist/ddp/guards/step_guard.h"

namespace lockstep::dist {

class AccumulationWindow final : public StepGuard {
 public:
  /// `parameters` must outlive the window.
  explicit AccumulationWindow(const std::vector<Parameter>& parameters)
      : parameters_(parameters), entries_(parameters.size()) {}

  /// Between backwards a gradient is local only while a window is open. zero_grad gives it up.
  bool open() const;
  /// A backward with this contribution begins. Parameter::uses_left() tells what it reaches. Throws
  /// StateError if some gradients were zeroed or stepped on within the window and others were not.
  void enter(const Contribution& contribution);
  /// All parts have been sent, or given up.
  void close();
  void ended(StepVerdict, int) override { close(); }

  bool used(std::size_t i) const { return entries_[i].used; }  ///< by a part that counts
  bool all_used() const;                                       ///< that require a gradient
  double weight() const { return weight_; }                    ///< of this rank's parts
  void write(StepMetadata& metadata) override;                 ///< its weight, divisor and data
  const Contribution& first() const { return contribution_; }  ///< the first part that counts

  /// Local SGD steps on this rank's gradient alone: it becomes the mean over this rank's parts. The
  /// slot holds their sum.
  void make_local_mean(std::size_t i);

 private:
  struct Entry {
    bool used = false;
    bool averaged = false;  // by make_local_mean
  };
  void check_unbroken(std::size_t i) const;
  void note(const BatchOrigin& origin);

  const std::vector<Parameter>& parameters_;
  std::vector<Entry> entries_;
  double weight_ = 0;
  BatchOrigin origin_ = {};  // of all parts that say it
  Contribution contribution_{0, 1, Contribution::Divisor::none, true};
};

}  // namespace lockstep::dist
