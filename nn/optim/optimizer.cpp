#include "lockstep/nn/optim/optimizer.h"

#include <algorithm>
#include <set>

namespace lockstep::optim {

Optimizer::Optimizer(std::vector<Parameter> all) : all_(std::move(all)) {
  std::set<const void*> seen;
  for (const Parameter& parameter : all_) {
    check<UsageError>(parameter.defined(), "[optimizer] parameter {} is undefined", seen.size());
    check<UsageError>(seen.insert(parameter.id()).second, "[optimizer] '{}' is given twice",
                      parameter.name());
  }
}

void Optimizer::take_step(bool own) {
  bool managed = false;
  std::uint64_t synchronizations = 0;
  for (const Parameter& parameter : all_) {
    managed = managed || parameter.managed();
    for (GradientObserver* observer : parameter.observers()) {
      observer->step_begins(parameter, own);
      synchronizations += observer->synchronizations();
    }
  }
  // The other ranks are waiting for this one, if their losses did reach something.
  check<StateError>(
      own || !managed || synchronizations != synchronizations_,
      "[step] nothing was synchronized since the last step: no loss has reached '{}' "
      "or another parameter on this rank. If that is right, call synchronize() in the "
      "place of backward",
      all_.empty() ? "" : all_.front().name());
  for (const Parameter& parameter : all_)
    check<StateError>(
        !managed || parameter.managed() || parameter.kept_local() ||
            parameter.gradient_state() == GradientState::nothing,
        "[step] '{}' is under no reducer, other parameters of this optimizer are: was "
        "it made or replaced after DistributedDataParallel? (If it is meant to differ "
        "between ranks: keep_local())",
        parameter.name());
  synchronizations_ = synchronizations;
  update();
  if (!managed || own) return;
  const auto first = std::ranges::find_if(all_, &Parameter::managed);
  for (GradientObserver* observer : first->observers()) observer->stepped(options_digest());
}

void Optimizer::zero_grad() {
  for (const Parameter& parameter : all_) parameter.zero_grad();
}

}  // namespace lockstep::optim
