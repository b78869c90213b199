// Backwards that are part of a recorded step (core/gpu/graph.h). What is recorded runs again without the
// host, so nothing may depend on what the host would read: no step metadata travels. The weights'
// total is known, every parameter is used, and the sums are the gradients. Whether ranks agree was
// checked in the step that ran before the recording, and the calls are compared while it is made.

#include "lockstep/dist/ddp/reducer.h"

namespace lockstep::dist {

void Reducer::check_recordable(const Contribution& contribution) const {
  using Divisor = Contribution::Divisor;
  const auto refuse = [](bool bad, std::string_view why) {
    check<StateError>(!bad, "[backward] in a step that is being recorded {}", why);
  };
  refuse(contribution.kind != Divisor::given && contribution.kind != Divisor::ranks,
         "the total weight must be known when backward begins: give Weight a total, or no Weight");
  refuse(options_.nonfinite != NonFinite::ignore,
         "nobody can look for infinite gradients: NonFinite::ignore");
  refuse(options_.hook != nullptr, "there can be no communication hook");
  refuse(steps_early(), "no optimizer can step early");
  refuse(!syncing_, "gradients cannot only be accumulated");
  for (const GradientBuckets::Bucket& bucket : buckets_->all())
    refuse(bucket.memory.device() != bucket.travelling.device(),
           "gradients cannot travel through the host: take nccl, or transport ipc");
  for (const Parameter& parameter : buckets_->parameters()) {
    check<StateError>(parameter.pending() > 0,
                      "[backward] in a step that is being recorded every parameter must be used, "
                      "'{}' is not",
                      parameter.name());
    check<StateError>(parameter.gradient_state() == GradientState::nothing,
                      "[backward] in a step that is being recorded gradients begin at nothing, and "
                      "that of '{}' does not: zero_grad() first",
                      parameter.name());
  }
}

}  // namespace lockstep::dist
