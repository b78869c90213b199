#include "lockstep/nn/optim/groups.h"

namespace lockstep::optim {

std::array<Option, 5> LionOptions::list() const {
  return {{
      {"lr", lr, not_negative},
      {"beta1", beta1, share},
      {"beta2", beta2, share},
      {"weight_decay", weight_decay, not_negative},
      {"maximize", maximize},
  }};
}

LionState::LionState(const Tensor& value, const LionOptions&)
    : momentum(Tensor::zeros(value.shape(), value.dtype(), value.device())) {}

LionState::Item LionState::item(const Parameter& parameter, const LionOptions&) {
  return {parameter.value(), parameter.gradient_slot(), momentum};
}

template class Grouped<LionOptions, LionState>;

Lion::Lion(std::vector<Parameter> parameters, Options options)
    : Lion(std::vector<Group<Options>>{{std::move(parameters), options}}) {}

Lion::Lion(std::vector<Group<Options>> groups) : Grouped("Lion", std::move(groups)) {}

void Lion::step_items(std::span<const Item> items, const Options& o) {
  kernels::lion_step(items, {.lr = o.lr,
                             .beta1 = o.beta1,
                             .beta2 = o.beta2,
                             .weight_decay = o.weight_decay,
                             .maximize = o.maximize});
}

}  // namespace lockstep::optim
