#include "lockstep/dist/ddp/recordable.h"

#include "lockstep/dist/ddp/guards/nonfinite.h"

namespace lockstep::dist {

void check_recordable(const Contribution& contribution, const DdpOptions& options,
                      const GradientBuckets& buckets) {
  const auto refuse = [](bool bad, std::string_view why) {
    check<StateError>(!bad, "[backward] in a step that is being recorded {}", why);
  };
  refuse(!contribution.total_known(),
         "the total weight must be known when backward begins: give Weight a total, or no Weight");
  refuse(looks_in_gradients(options.nonfinite),
         "nobody can look for infinite gradients: NonFinite::report");
  refuse(options.hook != nullptr, "there can be no communication hook");
  refuse(!contribution.sync, "gradients cannot only be accumulated");
  for (const GradientBuckets::Bucket& bucket : buckets.all())
    refuse(bucket.memory.device() != bucket.wire.device(),
           "gradients cannot travel through the host: take nccl, or transport ipc");
  for (const Parameter& parameter : buckets.parameters()) {
    check<StateError>(parameter.uses_left() > 0,
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
