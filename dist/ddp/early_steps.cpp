#include "lockstep/dist/ddp/early_steps.h"

#include <algorithm>

#include "lockstep/dist/ddp/nonfinite.h"

namespace lockstep::dist {

void EarlySteps::add(const std::weak_ptr<EarlyStepper>& stepper, NonFinite policy) {
  check<UsageError>(
      !looks_in_gradients(policy),
      "[overlap] a step that begins before all buckets have arrived cannot be given up for a bad "
      "gradient in a later one: it does not go together with NonFinite::{}",
      policy == NonFinite::skip ? "skip" : "stop");
  std::erase_if(steppers_, [](const auto& known) { return known.expired(); });
  steppers_.push_back(stepper);
}

void EarlySteps::step_on(const GradientBuckets::Bucket& bucket,
                         const AccumulationWindow& window) const {
  if (!window.first().total_known()) return;
  std::vector<Parameter> final;
  for (std::size_t k = 0; k < bucket.members.size(); ++k) {
    // Whether another rank has used it is not known yet.
    if (!window.used(static_cast<std::size_t>(bucket.members[k]))) continue;
    final.push_back(bucket.parameters[k]);
    final.back().set_gradient_state(GradientState::synchronized);
  }
  for (const auto& known : steppers_)
    if (const auto stepper = known.lock()) stepper->step_now(final);
}

void EarlySteps::check_final(const StepOutcome& outcome, std::span<const StepMetadata> metadata) {
  using enum Contribution::Divisor;
  const auto first =
      std::ranges::find_if(metadata, [](const StepMetadata& m) { return m.kind != none; });
  if (outcome.scale == 1 || first == metadata.end() || first->kind == summed) return;
  fail<StateError>(
      "[backward] the optimizer has stepped on sums divided by {:g}, as soon as they were there "
      "(optim::Overlap), but the ranks with data weigh {:g} in all. Where ranks may have no data, "
      "do not overlap, or give every backward a Weight with a total",
      first->divisor, outcome.weight);
}

}  // namespace lockstep::dist
