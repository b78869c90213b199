#include "lockstep/nn/optim/groups.h"

namespace lockstep::optim {

std::array<Option, 7> RmspropOptions::list() const {
  return {{
      {"lr", lr, not_negative},
      {"alpha", alpha, share},
      {"eps", eps, not_negative},
      {"weight_decay", weight_decay, not_negative},
      {"momentum", momentum, not_negative},
      {"centered", centered},
      {"maximize", maximize},
  }};
}

RmspropState::RmspropState(const Tensor& value, const RmspropOptions& options) {
  const auto zeros = [&] { return Tensor::zeros(value.shape(), value.dtype(), value.device()); };
  square = zeros();
  if (options.centered) mean = zeros();
  if (options.momentum != 0) momentum = zeros();
}

RmspropState::Item RmspropState::item(const Parameter& parameter, const RmspropOptions& options) {
  if (options.centered && !mean.defined()) make_state(mean, "mean", parameter);
  if (options.momentum != 0 && !momentum.defined()) make_state(momentum, "momentum", parameter);
  return {parameter.value(), parameter.gradient_slot(), square, mean, momentum};
}

std::vector<StateTensor> RmspropState::tensors() const {
  return {{"square", square}, {"mean", mean}, {"momentum", momentum}};
}

template class Grouped<RmspropOptions, RmspropState>;

RMSprop::RMSprop(std::vector<Parameter> parameters, Options options)
    : RMSprop(std::vector<Group<Options>>{{std::move(parameters), options}}) {}

RMSprop::RMSprop(std::vector<Group<Options>> groups) : Grouped("RMSprop", std::move(groups)) {}

void RMSprop::step_items(std::span<const Item> items, const Options& o) {
  kernels::rmsprop_step(items, {.lr = o.lr,
                                .alpha = o.alpha,
                                .eps = o.eps,
                                .momentum = o.momentum,
                                .weight_decay = o.weight_decay,
                                .centered = o.centered,
                                .maximize = o.maximize});
}

}  // namespace lockstep::optim
