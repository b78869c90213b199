#include "lockstep/nn/recorded_steps.h"

#include <algorithm>
#include <utility>

namespace lockstep::nn {
namespace {

/// x, y and the other fields of a batch, each once: x and y may be fields, or stand beside them.
std::vector<data::Field> tensors_of(const data::Batch& batch) {
  std::vector<data::Field> all(batch.fields.begin(), batch.fields.end());
  for (const auto& [name, value] : {data::Field{"x", batch.x}, data::Field{"y", batch.y}}) {
    const Tensor* const field = batch.fields.find(name);
    if (value.defined() && (!field || field->raw() != value.raw())) all.push_back({name, value});
  }
  return all;
}

/// The cpu, if a tensor lies there: the function may read it.
Device device_of(const data::Batch& batch) {
  Device device;
  for (const data::Field& field : tensors_of(batch)) {
    device = field.value.device();
    if (device == Device{}) break;
  }
  return device;
}

/// Whether the function has kept a tensor of the batch, or a part of one.
bool is_held(const data::Batch& batch) {
  std::vector<const Tensor*> handles{&batch.x, &batch.y};
  for (const data::Field& field : batch.fields) handles.push_back(&field.value);
  return std::ranges::any_of(handles, [&](const Tensor* one) {
    const auto same = [&](const Tensor* other) { return other->storage() == one->storage(); };
    return one->defined() && one->storage().references() > std::ranges::count_if(handles, same);
  });
}

/// The same in separate memory, which replays overwrite.
data::Batch copy_of(const data::Batch& batch) {
  data::Batch copy = batch;
  const auto separate = [&](const Tensor& value) {
    return batch.lanes ? of_samples(value.clone()) : value.clone();
  };
  for (const auto& [name, value] : batch.fields) copy.fields.set(name, separate(value));
  for (auto [name, tensor] : {std::pair("x", &copy.x), std::pair("y", &copy.y)}) {
    if (!tensor->defined()) continue;
    const Tensor* const field = batch.fields.find(name);
    *tensor = field && field->raw() == tensor->raw() ? copy.fields[name] : separate(*tensor);
  }
  return copy;
}

}  // namespace

Tensor RecordedSteps::operator()(const data::Batch& batch) {
  if (device_of(batch) == Device{} || batch.weight.total == Weight::summed) return step_(batch);
  if (first_ && is_held(*first_)) first_.reset();  // that memory is the function's now
  if (!first_) {
    first_ = copy_of(batch);
    graph_.emplace([this] { take_first(); }, device_of(batch));
  } else if (!holds_for(batch)) {
    return step_(batch);
  } else {
    const auto to = tensors_of(*first_), from = tensors_of(batch);
    check_like_first(batch, to, from);
    for (std::size_t i = 0; i < to.size(); ++i) to[i].value.copy_from(from[i].value);
    first_->position = batch.position;
    first_->step = batch.step;
    first_->weight.origin = batch.weight.origin;
  }
  const int before = graph_->recordings();
  replays_ += (*graph_)() && graph_->recordings() == before;
  return result_.defined() ? result_.clone() : result_;
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

void RecordedSteps::check_like_first(const data::Batch& batch, const std::vector<data::Field>& then,
                                     const std::vector<data::Field>& now) const {
  check<StateError>(batch.weight.local == first_->weight.local,
                    "[recorded steps] a batch that counts {} of {}, where the recorded step's "
                    "counts {}: the other ranks replay theirs",
                    batch.weight.local, batch.weight.total, first_->weight.local);
  check<StateError>(now.size() == then.size(),
                    "[recorded steps] a batch of {} tensors, in the recorded step {}: the other "
                    "ranks replay theirs",
                    now.size(), then.size());
  for (std::size_t i = 0; i < now.size(); ++i) {
    const auto& [name, value] = now[i];
    check<StateError>(name == then[i].name && value.shape() == then[i].value.shape() &&
                          value.dtype() == then[i].value.dtype(),
                      "[recorded steps] '{}' is {} {}, in the recorded step '{}' {} {}: the other "
                      "ranks replay theirs",
                      name, value.shape(), value.dtype(), then[i].name, then[i].value.shape(),
                      then[i].value.dtype());
  }
}

}  // namespace lockstep::nn
