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

void Optimizer::step() {
  for (const Parameter& parameter : all_)
    check<StateError>(parameter.gradient_state() != GradientState::local || !parameter.managed(),
                      "[step] the gradient of '{}' is not synchronized: run a backward that "
                      "synchronizes before the step",
                      parameter.name());
  update();
}

void Optimizer::zero_grad() {
  for (const Parameter& parameter : all_) parameter.zero_grad();
}

}  // namespace lockstep::optim
