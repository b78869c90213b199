#include "lockstep/nn/recorded_steps.h"

namespace lockstep::nn {
namespace {

Device device_of(const data::Batch& batch) {
  return batch.fields.size() == 0 ? Device{} : batch.fields.begin()->value.device();
}

}  // namespace

Tensor RecordedSteps::operator()(const data::Batch& batch) {
  if (device_of(batch) == Device{} || batch.weight.total == Weight::summed) return step_(batch);
  if (!first_) {
    first_ = batch;
    graph_.emplace([this] { take_first(); }, device_of(batch));
  } else if (!holds_for(batch)) {
    return step_(batch);
  } else {
    check_like_first(batch);
    for (const auto& [name, value] : batch.fields) first_->fields[name].copy_from(value);
  }
  const int before = graph_->recordings();
  (*graph_)();
  replays_ += before > 0 && graph_->recordings() == before;
  return result_;
}

bool RecordedSteps::holds_for(const data::Batch& batch) const {
  return batch.weight.total == first_->weight.total && batch.weight.lanes == first_->weight.lanes &&
         device_of(batch) == device_of(*first_);
}

void RecordedSteps::take_first() {
  const Tensor result = step_(*first_);
  if (!result.defined()) return;
  if (!result_.defined()) result_ = Tensor::empty(result.shape(), result.dtype(), result.device());
  result_.copy_from(result);
}

void RecordedSteps::check_like_first(const data::Batch& batch) const {
  check<StateError>(batch.weight.local == first_->weight.local,
                    "[recorded steps] a batch that counts {} of {}, where the recorded step's "
                    "counts {}: the other ranks replay theirs",
                    batch.weight.local, batch.weight.total, first_->weight.local);
  for (const auto& [name, value] : first_->fields) {
    const Tensor& now = batch.fields[name];
    check<StateError>(now.shape() == value.shape() && now.dtype() == value.dtype(),
                      "[recorded steps] '{}' is {} {}, in the recorded step {} {}: the other ranks "
                      "replay theirs",
                      name, now.shape(), now.dtype(), value.shape(), value.dtype());
  }
}

}  // namespace lockstep::nn
