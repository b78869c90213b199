#include "lockstep/dist/reducer.h"

#include <algorithm>

namespace lockstep::dist {

Reducer::Reducer(std::vector<Parameter> parameters, Communicator& communicator,
                 std::size_t bucket_cap)
    : communicator_(communicator) {
  std::vector<GradientSize> sizes;
  for (const Parameter& parameter : parameters) {
    check<StateError>(!parameter.managed(), "[reducer] '{}' already has one", parameter.name());
    check<StateError>(std::ranges::count(parameters, parameter) == 1,
                      "[reducer] '{}' is given twice", parameter.name());
    check<DeviceError>(parameter.value().device() == parameters[0].value().device(),
                       "[reducer] '{}' is on {}, '{}' on {}", parameters[0].name(),
                       parameters[0].value().device().to_string(), parameter.name(),
                       parameter.value().device().to_string());
    sizes.push_back({parameter.value().numel(), parameter.value().dtype()});
  }
  plan_ = bucket_plan(sizes, bucket_cap);

  entries_.resize(parameters.size());
  for (std::size_t b = 0; b < plan_.buckets.size(); ++b) {
    const BucketPlan::Bucket& planned = plan_.buckets[b];
    const Device device = parameters[0].value().device();
    const Tensor travelling = communicator.allocate(planned.numel, planned.dtype);
    const Tensor memory =
        device == travelling.device() ? travelling
                                      : Tensor::zeros(travelling.shape(), planned.dtype, device);
    for (const BucketPlan::Slot& slot : planned.slots) {
      const Parameter& parameter = parameters[static_cast<std::size_t>(slot.parameter)];
      const std::int64_t end = slot.offset + parameter.value().numel();
      parameter.place_gradient(memory.slice(slot.offset, end).view(parameter.value().shape()));
      entries_[static_cast<std::size_t>(slot.parameter)] = {parameter, b, {}};
    }
    const bool last = b + 1 == plan_.buckets.size();
    buckets_.push_back({.name = fmt::format("bucket {}", b),
                        .memory = memory,
                        .travelling = travelling,
                        .gradients = last ? plan_.used_offset : planned.numel,
                        .work = {}});
  }
  if (!buckets_.empty()) {
    const auto count = static_cast<std::int64_t>(entries_.size());
    used_ = buckets_.back().travelling.slice(plan_.used_offset, plan_.used_offset + count);
  }
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    index_[entries_[i].parameter.id()] = i;
    entries_[i].observation = entries_[i].parameter.observe(*this);
  }
}

Reducer::~Reducer() {
  for (const Entry& entry : entries_) entry.parameter.place_gradient({});
}

std::size_t Reducer::bytes() const {
  std::size_t bytes = 0;
  for (const Bucket& bucket : buckets_) bytes += bucket.memory.bytes();
  return bytes;
}

std::size_t Reducer::largest_bucket() const {
  std::size_t largest = 0;
  for (const Bucket& bucket : buckets_) largest = std::max(largest, bucket.memory.bytes());
  return largest;
}

std::int64_t Reducer::parameters() const {
  std::int64_t elements = 0;
  for (const Entry& entry : entries_) elements += entry.parameter.value().numel();
  return elements;
}

void Reducer::backward_begins() {
  launched_ = 0;
  for (Bucket& bucket : buckets_) bucket.pending = 0;
  used_.fill_zero();
  visit_floating("reducer", used_.dtype(), [&](auto zero) {
    auto* used = used_.data<decltype(zero)>();
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      used[i] = begin(entries_[i].parameter) ? 1 : 0;
      if (entries_[i].parameter.pending() > 0) ++buckets_[entries_[i].bucket].pending;
    }
  });
  launch_ready();
}

// Brings a gradient's slot into the state in which the ranks' slots can be summed, and tells
// whether this rank has something to contribute.
bool Reducer::begin(const Parameter& parameter) {
  const bool reached = parameter.pending() > 0;
  const GradientState state = parameter.gradient_state();
  if (state == GradientState::local) return true;
  const bool carried = state == GradientState::synchronized && communicator_.rank() == 0;
  if (carried) return true;
  parameter.zero_grad();
  if (!reached) parameter.gradient_slot().fill_zero();
  return reached;
}

void Reducer::gradient_ready(const Parameter& parameter) {
  ready_in(buckets_[entries_[index_.at(parameter.id())].bucket]);
}

void Reducer::ready_in(Bucket& bucket) {
  --bucket.pending;
  launch_ready();
  // The computing thread carries the collectives on; the last one launched ends after all others.
  if (launched_ > 0) buckets_[launched_ - 1].work.progress();
}

void Reducer::launch_ready() {
  for (; launched_ < buckets_.size() && buckets_[launched_].pending == 0; ++launched_) {
    Bucket& bucket = buckets_[launched_];
    copy_gradients(bucket, bucket.memory, bucket.travelling);
    bucket.work = communicator_.all_reduce(bucket.travelling, bucket.name);
  }
}

// Between a GPU's bucket and the one that travels. Elsewhere they are the same.
void Reducer::copy_gradients(const Bucket& bucket, const Tensor& from, const Tensor& to) {
  if (from.device() != to.device())
    to.slice(0, bucket.gradients).copy_from(from.slice(0, bucket.gradients));
}

void Reducer::backward_ends() {
  for (Bucket& bucket : buckets_) {
    bucket.work.wait();
    copy_gradients(bucket, bucket.travelling, bucket.memory);
  }
  visit_floating("reducer", used_.dtype(), [&](auto zero) {
    const auto* used = used_.data<decltype(zero)>();
    for (std::size_t i = 0; i < entries_.size(); ++i)
      entries_[i].parameter.set_gradient_state(used[i] > 0 ? GradientState::synchronized
                                                           : GradientState::nothing);
  });
}

// The other ranks go on to launch this backward's buckets. Nothing that this rank sends later may
// be taken for them.
void Reducer::backward_failed() noexcept {
  if (communicator_.size() > 1)
    communicator_.abort(
        fmt::format("[backward] rank {} left it by an exception", communicator_.rank()));
  for (const Entry& entry : entries_) entry.parameter.zero_grad();
}

}  // namespace lockstep::dist
