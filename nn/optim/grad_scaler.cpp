#include "lockstep/nn/optim/grad_scaler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "lockstep/autograd/gradient_reducer.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/gpu/graph.h"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/reduce.h"

namespace lockstep::optim {
namespace {

void check_in(std::string_view where, bool good, std::string_view name, double value,
              std::string_view range) {
  check<UsageError>(good, "[{}] {} must be in {}, got {}", where, name, range, value);
}

// An f64 may be infinite or 0 as f32, with which the loss is multiplied.
void check_scale(std::string_view where, double scale) {
  const auto used = static_cast<float>(scale);
  check_in(where, std::isfinite(used) && used > 0, "scale", scale, "(0, inf) as f32");
}

}  // namespace

GradScaler::GradScaler(GradScalerOptions options)
    : options_(options), scale_(static_cast<float>(options.scale)) {
  check_scale("GradScaler", options.scale);
  check_in("GradScaler", std::isfinite(options.growth_factor) && options.growth_factor > 1,
           "growth_factor", options.growth_factor, "(1, inf)");
  check_in("GradScaler", options.backoff_factor > 0 && options.backoff_factor < 1, "backoff_factor",
           options.backoff_factor, "(0, 1)");
  check_in("GradScaler", options.growth_interval >= 1, "growth_interval",
           static_cast<double>(options.growth_interval), "[1, inf)");
}

double GradScaler::scale() const {
  if (StepGraph::noting())
    StepGraph::depends_on(life_.ref(), [this, then = scale_] { return scale_ == then; });
  return scale_;
}

Tensor GradScaler::scale(const Tensor& loss) const {
  return (is_16_bit(loss.dtype()) ? cast(loss, DType::f32) : loss) * scale();
}

void GradScaler::unscale(Optimizer& optimizer) {
  check<StateError>(!unscaled_.contains(optimizer.life()),
                    "[unscale] this optimizer's gradients are divided by the scale already: call "
                    "update() after each step");
  const auto& all = optimizer.all();
  const bool managed = std::ranges::any_of(all, &Parameter::managed);
  Progress progress;
  for (const Parameter& parameter : all) {
    check<StateError>(!managed || !parameter.kept_local(),
                      "[unscale] {} is kept local: whether its gradient is finite may differ "
                      "between ranks, and with it whether they step",
                      parameter);
    const GradientReducer* reducer = parameter.reducer();
    const GradientState state = parameter.gradient_state();
    check<StateError>(state != GradientState::local || !reducer,
                      "[unscale] the gradient of {} is not synchronized: run a backward that "
                      "synchronizes first",
                      parameter);
    progress.finite = progress.finite && !(reducer && reducer->gave_up());
    if (state == GradientState::nothing) continue;
    const Tensor& gradient = parameter.gradient_slot();
    progress.finite = progress.finite && kernels::all_finite(gradient);
    kernels::scale(1.0 / scale_, gradient, gradient, false);
    gradient.storage().changed();
  }
  unscaled_.emplace(optimizer.life(), progress);
}

bool GradScaler::step(Optimizer& optimizer) {
  if (!unscaled_.contains(optimizer.life())) unscale(optimizer);
  Progress& progress = unscaled_.at(optimizer.life());
  check<StateError>(!progress.stepped,
                    "[step] this optimizer was stepped since the last update() of the GradScaler");
  progress.finite ? optimizer.step() : optimizer.gradients_are_used();
  progress.stepped = true;
  return progress.finite;
}

void GradScaler::update() {
  StepGraph::refuse_in_recording("GradScaler::update");
  check<StateError>(!unscaled_.empty(),
                    "[update] no optimizer was stepped since the last update()");
  bool finite = true;
  for (const auto& [life, progress] : unscaled_) finite = finite && progress.finite;
  unscaled_.clear();
  if (!finite) {
    scale_ *= static_cast<float>(options_.backoff_factor);
    steady_ = 0;
    check<StateError>(scale_ >= std::numeric_limits<float>::min(),
                      "[update] gradients are infinite or NaN at every scale down to {}: is the "
                      "loss itself not finite?",
                      scale_);
  } else if (++steady_ >= options_.growth_interval) {
    const float grown = scale_ * static_cast<float>(options_.growth_factor);
    if (std::isfinite(grown)) scale_ = grown;
    steady_ = 0;
  }
}

void GradScaler::check_between_steps(std::string_view operation) const {
  check<StateError>(unscaled_.empty(),
                    "[{}] of a GradScaler between unscale() or step() and update(): call update() "
                    "first, which the state would lose",
                    operation);
}

nn::StateDict GradScaler::state_dict() const {
  check_between_steps("state_dict");
  return {{"scale", Tensor::scalar(scale_, DType::f64)},
          {"steady", Tensor::scalar(static_cast<double>(steady_), DType::i64)}};
}

void GradScaler::load_state_dict(const nn::StateDict& state) {
  check_between_steps("load_state_dict");
  const nn::StateDict own = state_dict();
  nn::load_tensors("the GradScaler", own, state);
  check_scale("load_state_dict", own.at("scale").item());
  steady_ = nn::count_in("steady", own.at("steady"));
  scale_ = static_cast<float>(own.at("scale").item());
}

}  // namespace lockstep::optim
