#include "lockstep/autograd/lanes/lane_record.h"

#include <algorithm>
#include <utility>

namespace lockstep {

LaneRecord::LaneRecord(std::vector<Parameter> parameters) : parameters_(std::move(parameters)) {
  for (const Parameter& parameter : parameters_) parameter.state_->lanes = {};
}

LaneRecord::LaneRecord(std::vector<Parameter> parameters, const LaneRecord& step)
    : LaneRecord(std::move(parameters)) {
  step_ = &step;
}

LaneRecord* LaneRecord::current() {
  return Scope::innermost() ? Scope::innermost()->record_ : nullptr;
}

// ---- gradients ----

struct LaneRecord::OtherGradients::Kept {
  Tensor slot, lanes;
  GradientState state = GradientState::nothing;
  bool lanes_wait = false;
  std::vector<GradientObserver*> observers;
};

LaneRecord::OtherGradients::OtherGradients(std::vector<Parameter> parameters)
    : ThreadScope("LaneRecord::OtherGradients"),
      parameters_(std::move(parameters)),
      kept_(parameters_.size()) {
  // Two of them could only end in reverse order.
  for (const OtherGradients* other = outer(); other; other = other->outer())
    for (const Parameter& parameter : parameters_)
      check<StateError>(
          std::ranges::find(other->parameters_, parameter) == other->parameters_.end(),
          "[aside] the gradient of {} is put aside already", parameter);
  exchange();
}
LaneRecord::OtherGradients::~OtherGradients() { exchange(); }

void LaneRecord::OtherGradients::exchange() {
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    detail::ParameterState& now = *parameters_[i].state_;
    Kept& kept = kept_[i];
    std::swap(now.slot, kept.slot);
    std::swap(now.lanes, kept.lanes);
    std::swap(now.state, kept.state);
    std::swap(now.lanes_wait, kept.lanes_wait);
    std::swap(now.observers, kept.observers);
  }
}

void LaneRecord::take_gradients() {
  if (step_)
    check<StateError>(recalled_ == step_->shared_.size(),
                      "[recompute] lanes were brought together {} times, and {} times in the step: "
                      "the loss does not do again what it did",
                      recalled_, step_->shared_.size());
  std::vector<Part> gradients;
  for (const Parameter& parameter : parameters_)
    gradients.push_back({parameter.label(), std::exchange(parameter.state_->lanes, {})});
  parts_.insert(parts_.begin(), gradients.begin(), gradients.end());
}

// ---- what lanes share ----

void LaneRecord::note(const char* operation, const Tensor& lanes) {
  parts_.push_back(
      {fmt::format("sum {} over samples, of {}", parts_.size() + 1, operation), lanes.clone()});
}

void LaneRecord::remember(std::initializer_list<Tensor> results, const double* number) {
  Shared& shared = shared_.emplace_back();
  for (const Tensor& result : results) shared.results.push_back(result.clone());
  shared.number = number ? *number : 0;
}

bool LaneRecord::recall(std::initializer_list<Tensor> results, double* number) {
  if (!step_) return false;
  const auto differs = [] {
    fail<StateError>(
        "[recompute] lanes are brought together as they were not in the step: the "
        "loss does not do again what it did");
  };
  if (recalled_ == step_->shared_.size()) differs();
  const Shared& shared = step_->shared_[recalled_++];
  if (shared.results.size() != results.size()) differs();
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Tensor& result = results.begin()[i];
    if (result.shape() != shared.results[i].shape()) differs();
    result.copy_from(shared.results[i]);
  }
  if (number) *number = shared.number;
  return true;
}

}  // namespace lockstep
