// The verdict one step late: on a GPU the host then need not wait for the collectives of a backward
// before it enqueues the optimizer's step and the next forward.
//
//   host    | backward 1 | step 1 | forward 2 | read messages 1 | backward 2 | step 2 | ...
//   GPU        | backward 1 | buckets |step 1 | forward 2 | ...
//
// What the messages would change must be nothing: the total weight is known, this rank has used every
// parameter, nobody looks for infinite gradients. That this holds on all ranks is seen late; if not,
// the error stops training after one step too many.

#include <algorithm>

#include "lockstep/dist/ddp/reducer.h"

namespace lockstep::dist {

using Divisor = Contribution::Divisor;

bool Reducer::can_defer() const {
  const Divisor kind = window_.contribution.kind;
  return options_.deferred && planned_ && !already_reduced_ && !options_.hook && !steps_early() &&
         options_.nonfinite == NonFinite::ignore &&
         (kind == Divisor::given || kind == Divisor::ranks) &&
         buckets_->all().back().travelling.device() != Device{} &&
         std::ranges::all_of(entries_, &Entry::used);
}

void Reducer::defer() {
  deferred_ = true;
  take_sums();
}

void Reducer::take_sums() {
  for (GradientBuckets::Bucket& bucket : buckets_->all()) bucket.work.wait();
  for (const Parameter& parameter : buckets_->parameters())
    parameter.set_gradient_state(GradientState::synchronized);
  window_ = {};
  for (Entry& entry : entries_) entry.used = false;
  ++synchronizations_;
  if (options_.after_sync) options_.after_sync(StepVerdict::commit, 0);
}

void Reducer::settle() {
  if (!std::exchange(deferred_, false)) return;
  const Device device = buckets_->all().back().travelling.device();
  // Not on the current stream, where what was enqueued since would have to be waited for.
  if (!side_stream_) side_stream_ = Stream::create(device);
  const StreamGuard guard(*side_stream_);
  const StepOutcome agreement = read_metadata();
  if (agreement.verdict == StepVerdict::stop) stop(agreement);
  check<StateError>(
      agreement.scale == 1,
      "[backward] the step before this one was taken on sums over {:g}, but the ranks "
      "with data weighed {:g} in all: where ranks may have no data, do not defer the "
      "verdict (DdpOptions::deferred)",
      agreement.weight * agreement.scale, agreement.weight);
}

}  // namespace lockstep::dist
