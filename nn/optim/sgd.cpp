#include "lockstep/nn/optim/groups.h"

namespace lockstep::optim {

std::array<Option, 6> SgdOptions::list() const {
  return {{
      {"lr", lr, not_negative},
      {"momentum", momentum, not_negative},
      {"dampening", dampening, any_number},
      {"weight_decay", weight_decay, not_negative},
      {"nesterov", nesterov},
      {"maximize", maximize},
  }};
}

void SgdOptions::check_together() const {
  check<UsageError>(!nesterov || (momentum > 0 && dampening == 0),
                    "[SGD] nesterov needs momentum > 0 and dampening 0, got {} and {}", momentum,
                    dampening);
}

SgdState::Item SgdState::item(const Parameter& parameter, const SgdOptions& options) {
  const bool first = options.momentum != 0 && !momentum.defined();
  if (first) make_state(momentum, "momentum", parameter);
  return {parameter.value(), parameter.gradient_slot(), momentum, first};
}

template class Grouped<SgdOptions, SgdState>;

SGD::SGD(std::vector<Parameter> parameters, Options options)
    : SGD(std::vector<Group<Options>>{{std::move(parameters), options}}) {}

SGD::SGD(std::vector<Group<Options>> groups) : Grouped("SGD", std::move(groups)) {}

void SGD::step_items(std::span<const Item> items, const Options& o) {
  kernels::sgd_step(items, {.lr = o.lr,
                            .momentum = o.momentum,
                            .dampening = o.dampening,
                            .weight_decay = o.weight_decay,
                            .nesterov = o.nesterov,
                            .maximize = o.maximize});
}

}  // namespace lockstep::optim
