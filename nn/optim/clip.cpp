#include "lockstep/nn/optim/clip.h"

#include <cmath>
#include <optional>

#include "lockstep/autograd/gradient_reducer.h"
#include "lockstep/kernels/clip.h"

namespace lockstep::optim {
namespace {

/// The gradients there are.
std::vector<Tensor> gradients_of(std::string_view operation,
                                 const std::vector<Parameter>& parameters) {
  check_each_once(operation, parameters);
  std::vector<Tensor> gradients;
  gradients.reserve(parameters.size());
  std::optional<std::size_t> first;  // that takes part: what is frozen has no gradient
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = parameters[i];
    if (!parameter.requires_grad() && parameter.gradient_state() == GradientState::nothing)
      continue;
    if (!first) first = i;
    check<StateError>(parameter.managed() == parameters[*first].managed(),
                      "[{}] of {} and {} one is under DistributedDataParallel and the other is "
                      "not: clip them apart",
                      operation, label_of(parameters, *first), label_of(parameters, i));
    const GradientState state = parameter.gradient_state();
    check<StateError>(state != GradientState::local || !parameter.managed(),
                      "[{}] the gradient of {} is not synchronized: run a backward that "
                      "synchronizes before clipping",
                      operation, parameter);
    if (state != GradientState::nothing) gradients.push_back(parameter.gradient_slot());
  }
  return gradients;
}

void check_positive(std::string_view operation, std::string_view name, double value) {
  check<UsageError>(std::isfinite(value) && value > 0, "[{}] {} must be positive, got {}",
                    operation, name, value);
}

Tensor clip(const std::vector<Parameter>& parameters, const std::vector<Tensor>& gradients,
            double max_norm) {
  const Device device = parameters.empty() ? Device{} : parameters[0].value().device();
  const Tensor norm = Tensor::empty({}, DType::f64, device);
  kernels::global_norm(gradients, norm);
  kernels::clip_by_norm(gradients, norm, max_norm);
  return norm;
}

}  // namespace

Tensor clip_grad_norm(const std::vector<Parameter>& parameters, double max_norm) {
  check_positive("clip_grad_norm", "max_norm", max_norm);
  return clip(parameters, gradients_of("clip_grad_norm", parameters), max_norm);
}

Tensor clip_grad_norm(const std::vector<Parameter>& parameters, double max_norm, Local) {
  check_positive("clip_grad_norm", "max_norm", max_norm);
  check_each_once("clip_grad_norm", parameters);
  std::vector<Tensor> gradients;
  for (const Parameter& parameter : parameters) {
    if (parameter.managed())
      parameter.reducer()->step_begins(parameter, true);  // it makes the window's sum a mean
    if (parameter.gradient_state() != GradientState::nothing)
      gradients.push_back(parameter.gradient_slot());
  }
  return clip(parameters, gradients, max_norm);
}

void clip_grad_value(const std::vector<Parameter>& parameters, double limit) {
  check_positive("clip_grad_value", "limit", limit);
  kernels::clip_by_value(gradients_of("clip_grad_value", parameters), limit);
}

}  // namespace lockstep::optim
