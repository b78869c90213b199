#pragma once
/// Optimizers that step on a bucket as soon as it is summed, while later buckets travel: what a
/// reducer does for optim::Overlap (nn/optim/overlap.h).

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/dist/ddp/accumulation_window.h"
#include "lockstep/dist/ddp/buckets/gradient_buckets.h"
#include "lockstep/dist/ddp/step_metadata.h"

namespace lockstep::dist {

class EarlyStepper {
 public:
  virtual ~EarlyStepper() = default;
  /// The gradients of these parameters are final.
  virtual void step_now(std::span<const Parameter> parameters) = 0;
};

class EarlySteps {
 public:
  /// Until `stepper` ends. Throws UsageError for NonFinite::skip and stop: a step that has begun
  /// cannot be given up.
  void add(const std::weak_ptr<EarlyStepper>& stepper, NonFinite policy);
  bool any() const {
    return std::ranges::any_of(steppers_, [](const auto& stepper) { return !stepper.expired(); });
  }

  /// `bucket` has been summed. Tells the steppers those of its parameters that this rank has used,
  /// if their sums are final: if the total weight was known when backward began.
  void step_on(const GradientBuckets::Bucket& bucket, const AccumulationWindow& window) const;
  /// Throws StateError, on every rank, if the sums turn out to need a division (a rank without
  /// data, one that has joined).
  static void check_final(const StepOutcome& outcome, std::span<const StepMetadata> metadata);

 private:
  std::vector<std::weak_ptr<EarlyStepper>> steppers_;
};

}  // namespace lockstep::dist
