// What a reducer does for communication hooks, and for optimizers that step during the
// synchronization.

#include <algorithm>

#include "lockstep/dist/ddp/reducer.h"

namespace lockstep::dist {

using Divisor = Contribution::Divisor;

// ---- communication hooks ----

void Reducer::prepare_hook() {
  members_.clear();
  std::vector<BucketView> views;
  for (const GradientBuckets::Bucket& bucket : buckets_->all()) {
    std::vector<Parameter>& members = members_.emplace_back();
    for (const int p : bucket.members)
      members.push_back(buckets_->parameters()[static_cast<std::size_t>(p)]);
  }
  for (const GradientBuckets::Bucket& bucket : buckets_->all()) views.push_back(view(bucket));
  options_.hook->prepare(views, communicator_);
}

BucketView Reducer::view(const GradientBuckets::Bucket& bucket) const {
  const auto b = static_cast<std::size_t>(&bucket - buckets_->all().data());
  return {static_cast<int>(b), bucket.name, bucket.memory, members_[b]};
}

// What lies behind the last bucket travels as it is, after the hook's part: it also arrives later.
void Reducer::launch_hook(GradientBuckets::Bucket& bucket, bool last) {
  bucket.work = options_.hook->reduce(view(bucket), communicator_);
  if (!last) return;
  const Tensor behind = bucket.travelling.slice(bucket.memory.numel(), bucket.travelling.numel());
  bucket.work = communicator_.all_reduce(behind, "control of " + bucket.name);
}

// ---- steps during the synchronization ----

void Reducer::overlap(EarlyStepper& stepper) {
  check<UsageError>(
      options_.nonfinite == NonFinite::ignore,
      "[overlap] a step that begins before all buckets have arrived cannot be given up for a bad "
      "gradient in a later one: it does not go together with NonFinite::{}",
      options_.nonfinite == NonFinite::skip ? "skip" : "stop");
  steppers_.push_back(&stepper);
}

void Reducer::step_early(const GradientBuckets::Bucket& bucket) {
  const Divisor kind = window_.contribution.kind;
  if (kind != Divisor::given && kind != Divisor::ranks) return;
  std::vector<Parameter> final;
  for (const int member : bucket.members) {
    const auto p = static_cast<std::size_t>(member);
    if (!entries_[p].used) continue;  // whether another rank has is not known yet
    final.push_back(buckets_->parameters()[p]);
    final.back().set_gradient_state(GradientState::synchronized);
  }
  for (EarlyStepper* stepper : steppers_) stepper->step_now(final);
}

void Reducer::check_final(const StepOutcome& agreement) const {
  const auto first = std::ranges::find_if(
      messages_, [](const StepMetadata& message) { return message.kind != Divisor::none; });
  if (agreement.scale == 1 || first == messages_.end() || first->kind == Divisor::summed) return;
  fail<StateError>(
      "[backward] the optimizer has stepped on sums divided by {:g}, as soon as they were there "
      "(optim::Overlap), but the ranks with data weigh {:g} in all. Where ranks may have no data, "
      "do not overlap, or give every backward a Weight with a total",
      first->divisor, agreement.weight);
}

}  // namespace lockstep::dist
