#include "lockstep/nn/optim/ema.h"

#include <algorithm>

#include "lockstep/autograd/ops.h"
#include "lockstep/nn/optim/optimizer.h"

namespace lockstep::optim {

Ema::Ema(std::vector<Parameter> parameters, double decay)
    : parameters_(std::move(parameters)), decay_(decay) {
  check_range("Ema", "decay", decay, share);
  check_each_once("Ema", parameters_);
  for (const Parameter& parameter : parameters_) averages_.push_back(parameter.value().clone());
}

void Ema::update() {
  check<StateError>(!applied_, "[Ema] update() while the averages are applied");
  check_values("update");
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    averages_[i].copy_from(lerp(averages_[i], parameters_[i].value(), 1 - decay_));
}

void Ema::check_values(std::string_view operation) const {
  for (const Parameter& parameter : parameters_)
    check<StateError>(!parameter.averaged(),
                      "[{}] {} holds another Ema's average for a while, and not its value",
                      operation, parameter);
}

void Ema::exchange(bool apply) {
  check<StateError>(applied_ != apply, "[Ema] the averages are applied already");
  if (apply) check_values("Ema");
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor value = parameters_[i].value().clone();
    parameters_[i].value().copy_from(averages_[i]);
    averages_[i].copy_from(value);
    parameters_[i].set_averaged(apply);
  }
  applied_ = apply;
}

nn::StateDict Ema::state_dict() const {
  check<StateError>(!applied_, "[Ema] state_dict() while the averages are applied");
  nn::StateDict state;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const std::string& name = parameters_[i].name();
    check<StateError>(!name.empty() && state.emplace(name, averages_[i]).second,
                      "[Ema] {}: set_name() tells parameters apart",
                      name.empty() ? label_of(parameters_, i)
                                   : fmt::format("two parameters are named '{}'", name));
  }
  return state;
}

void Ema::load_state_dict(const nn::StateDict& state) {
  nn::load_tensors("the average", state_dict(), state);
}

}  // namespace lockstep::optim
