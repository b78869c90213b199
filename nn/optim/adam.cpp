#include "lockstep/nn/optim/groups.h"

namespace lockstep::optim {

std::array<Option, 7> AdamOptions::list() const {
  return {{
      {"lr", lr, not_negative},
      {"beta1", beta1, share},
      {"beta2", beta2, share},
      {"eps", eps, not_negative},
      {"weight_decay", weight_decay, not_negative},
      {"amsgrad", amsgrad},
      {"maximize", maximize},
  }};
}

AdamState::AdamState(const Tensor& value, const AdamOptions& options)
    : mean(Tensor::zeros(value.shape(), value.dtype(), value.device())),
      variance(Tensor::zeros(value.shape(), value.dtype(), value.device())),
      step(Tensor::zeros({}, DType::i64, value.device())) {
  if (options.amsgrad) max_variance = Tensor::zeros(value.shape(), value.dtype(), value.device());
}

AdamState::Item AdamState::item(const Parameter& parameter, const AdamOptions& options) {
  if (options.amsgrad && !max_variance.defined())
    make_state(max_variance, "max_variance", parameter);
  return {parameter.value(), parameter.gradient_slot(), mean, variance, step, {}, max_variance};
}

std::vector<StateTensor> AdamState::tensors() const {
  return {{"mean", mean}, {"variance", variance}, {"step", step}, {"max_variance", max_variance}};
}

template class Grouped<AdamOptions, AdamState>;

Adam::Adam(std::vector<Parameter> parameters, Options options)
    : Adam({{std::move(parameters), options}}, false) {}

Adam::Adam(std::vector<Group<Options>> groups, bool decoupled)
    : Grouped(decoupled ? "AdamW" : "Adam", std::move(groups)), decoupled_(decoupled) {}

void Adam::step_items(std::span<const Item> items, const Options& o) {
  kernels::adam_step(items, {.lr = o.lr,
                             .beta1 = o.beta1,
                             .beta2 = o.beta2,
                             .eps = o.eps,
                             .weight_decay = o.weight_decay,
                             .decoupled = decoupled_,
                             .amsgrad = o.amsgrad,
                             .maximize = o.maximize});
}

}  // namespace lockstep::optim
