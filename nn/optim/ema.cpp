#include "lockstep/nn/optim/ema.h"

#include <algorithm>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/gpu/graph.h"
#include "lockstep/nn/optim/optimizer.h"

namespace lockstep::optim {

Ema::Ema(std::vector<Parameter> parameters, double decay)
    : state_(new State{std::move(parameters)}), decay_(decay) {
  check_range("Ema", "decay", decay, share);
  check_each_once("Ema", state_->parameters);
  for (const Parameter& parameter : state_->parameters)
    state_->averages.push_back(parameter.value().clone());
}

void Ema::update() {
  auto& [parameters, averages, applied] = *state_;
  check<StateError>(!applied, "[Ema] update() while the averages are applied");
  if (StepGraph::noting())
    StepGraph::depends_on(life_.ref(),
                          [this, then = state_.get()] { return state_.get() == then; });
  check_values(*state_, "update");
  for (std::size_t i = 0; i < parameters.size(); ++i)
    averages[i].copy_from(lerp(averages[i], parameters[i].value(), 1 - decay_));
}

void Ema::check_values(const State& state, std::string_view operation) {
  for (const Parameter& parameter : state.parameters)
    check<StateError>(!parameter.averaged(),
                      "[{}] {} holds another Ema's average for a while, and not its value",
                      operation, parameter);
}

void Ema::exchange(State& state, bool apply) {
  auto& [parameters, averages, applied] = state;
  check<StateError>(applied != apply, "[Ema] the averages are applied already");
  if (apply) check_values(state, "Ema");
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Tensor value = parameters[i].value().clone();
    parameters[i].value().copy_from(averages[i]);
    averages[i].copy_from(value);
    parameters[i].set_averaged(apply);
  }
  applied = apply;
}

nn::StateDict Ema::state_dict() const {
  const auto& [parameters, averages, applied] = *state_;
  check<StateError>(!applied, "[Ema] state_dict() while the averages are applied");
  nn::StateDict state;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::string& name = parameters[i].name();
    check<StateError>(!name.empty() && state.emplace(name, averages[i]).second,
                      "[Ema] {}: set_name() tells parameters apart",
                      name.empty() ? label_of(parameters, i)
                                   : fmt::format("two parameters are named '{}'", name));
  }
  return state;
}

void Ema::load_state_dict(const nn::StateDict& state) {
  nn::load_tensors("the average", state_dict(), state);
}

}  // namespace lockstep::optim
