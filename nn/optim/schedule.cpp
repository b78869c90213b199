#include "lockstep/nn/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "lockstep/core/gpu/graph.h"

namespace lockstep::optim {
namespace {

void check_steps(std::string_view name, std::int64_t step, std::int64_t steps, std::int64_t least) {
  check<UsageError>(step >= 0, "[{}] step {}; steps count from 0", name, step);
  check<UsageError>(steps >= least, "[{}] {} steps; at least {} are needed", name, steps, least);
}

void check_lives(std::string_view name, const std::weak_ptr<const void>& optimizer) {
  check<StateError>(!optimizer.expired(), "[{}] its optimizer has ended", name);
}

// From `begin` to `end` along half a cosine, 0 <= done <= 1.
double half_cosine(double begin, double end, double done) {
  return end + (begin - end) * (1 + std::cos(std::numbers::pi * done)) / 2;
}

}  // namespace

double step_decay(std::int64_t step, std::int64_t every, double gamma) {
  check_steps("step_decay", step, every, 1);
  const std::int64_t decays = step / every;
  return std::pow(gamma, static_cast<double>(decays));
}

double multi_step_decay(std::int64_t step, std::span<const std::int64_t> milestones, double gamma) {
  check_steps("multi_step_decay", step, 1, 1);
  const auto passed = std::ranges::count_if(milestones, [&](auto at) { return at <= step; });
  return std::pow(gamma, static_cast<double>(passed));
}

double warm_up(std::int64_t step, std::int64_t steps, double start) {
  check_steps("warm_up", step, steps, 1);
  const double done = static_cast<double>(std::min(step, steps)) / static_cast<double>(steps);
  return start + (1 - start) * done;
}

double cosine(std::int64_t step, std::int64_t steps, double end) {
  check_steps("cosine", step, steps, 1);
  return half_cosine(1, end,
                     static_cast<double>(std::min(step, steps)) / static_cast<double>(steps));
}

double one_cycle(std::int64_t step, std::int64_t steps, const OneCycle& options) {
  check_steps("one_cycle", step, steps, 2);
  check_range("one_cycle", "rising", options.rising, share);
  check<UsageError>(options.div_factor > 0 && options.final_div_factor > 0,
                    "[one_cycle] div_factor and final_div_factor must be positive, got {} and {}",
                    options.div_factor, options.final_div_factor);
  const double begin = 1 / options.div_factor, end = begin / options.final_div_factor;
  const double top = options.rising * static_cast<double>(steps) - 1;  // the step of the highest
  const auto last = static_cast<double>(steps - 1), at = std::min(static_cast<double>(step), last);
  if (at <= top) return top > 0 ? half_cosine(begin, 1, at / top) : 1;
  return half_cosine(1, end, (at - top) / (last - top));
}

Schedule::Schedule(Optimizer& optimizer, std::function<double(std::int64_t)> factor)
    : optimizer_(optimizer), factor_(std::move(factor)) {
  apply();
}

void Schedule::step() {
  check_lives("Schedule", life_);
  if (StepGraph::noting()) note_in_step();
  ++step_;
  const StepGraph::Pause pause;  // group_views() may be written: each replay does it again
  apply();
}

// A replay is right while this step, before or after the optimizer's, leaves the rates as they are.
void Schedule::note_in_step() {
  const Lifetime::Ref own = lifetime_.ref();
  StepGraph::depends_on(own, [this] { return rates_stay(); });
  StepGraph::at_replay([this, own] {
    if (!own.expired()) step();
  });
  if (!StepGraph::recording()) return;  // and the rates stay, or this step would not be recorded
  StepGraph::at_failure([this, own, before = step_] {
    if (!own.expired()) step_ = before;
  });
}

std::int64_t Schedule::steps() const {
  if (StepGraph::noting())
    StepGraph::depends_on(lifetime_.ref(), [this, then = step_] { return step_ == then; });
  return step_;
}

bool Schedule::rates_stay() const {
  if (life_.expired()) return false;
  const double factor = factor_(step_ + 1);
  const auto groups = optimizer_.group_views();
  const auto stays = [&](double base, const GroupView& group) { return group.lr == base * factor; };
  return std::ranges::equal(base_, groups, stays);
}

void Schedule::apply() {
  const double factor = factor_(step_);
  check_range("Schedule", "factor", factor, not_negative);
  const auto groups = optimizer_.group_views();
  for (std::size_t k = base_.size(); k < groups.size(); ++k) base_.push_back(groups[k].lr);
  for (std::size_t k = 0; k < groups.size(); ++k) groups[k].lr = base_[k] * factor;
}

nn::StateDict Schedule::state_dict() const {
  return {{"step", Tensor::of<std::int64_t>({}, {step_})}, {"base_lrs", Tensor::from(base_)}};
}

void Schedule::load_state_dict(const nn::StateDict& state) {
  const nn::StateDict own = state_dict();
  check_lives("Schedule", life_);
  nn::load_tensors("the schedule", own, state);
  for (const double lr : own.at("base_lrs").to_vector<double>())
    check_range("load_state_dict", "base_lrs", lr, not_negative);
  step_ = nn::count_in("step", own.at("step"));
  base_ = own.at("base_lrs").to_vector<double>();
  apply();
}

Plateau::Plateau(Optimizer& optimizer, PlateauOptions options)
    : optimizer_(optimizer), options_(options) {
  check<UsageError>(options.factor > 0 && options.factor < 1,
                    "[Plateau] factor must be in (0, 1), got {}", options.factor);
  check<UsageError>(options.patience >= 0, "[Plateau] patience must be 0 or more, got {}",
                    options.patience);
  check_range("Plateau", "threshold", options.threshold, share);
}

void Plateau::step(double loss) {
  StepGraph::refuse_in_recording("Plateau");
  check_lives("Plateau", life_);
  check<UsageError>(!std::isnan(loss), "[Plateau] the loss is NaN");
  if (loss < best_ * (1 - options_.threshold)) {
    best_ = loss;
    bad_ = 0;
    return;
  }
  if (++bad_ <= options_.patience) return;
  bad_ = 0;
  for (const GroupView& group : optimizer_.group_views()) group.lr *= options_.factor;
}

nn::StateDict Plateau::state_dict() const {
  return {{"best", Tensor::scalar(best_, DType::f64)},
          {"bad", Tensor::of<std::int64_t>({}, {bad_})}};
}

void Plateau::load_state_dict(const nn::StateDict& state) {
  const nn::StateDict own = state_dict();
  nn::load_tensors("the plateau", own, state);
  check<UsageError>(!std::isnan(own.at("best").item()),
                    "[load_state_dict] 'best' is NaN, and no loss is less");
  bad_ = nn::count_in("bad", own.at("bad"));
  best_ = own.at("best").item();
}

}  // namespace lockstep::optim
