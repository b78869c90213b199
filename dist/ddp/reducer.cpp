#include "lockstep/dist/ddp/reducer.h"

#include "lockstep/core/gpu/graph.h"
#include "lockstep/dist/ddp/step_error.h"
#include "lockstep/kernels/elementwise.h"

namespace lockstep::dist {

// ---- one backward: begin, ready, ready, ..., end ----

void Reducer::backward_begins(const Contribution& contribution) {
  settle();  // after a deferred verdict, on GPUs: second reading
  synchronizing_ = contribution.sync && *paused_ == 0;
  eager_ = contribution.eager;
  recording_ = StepGraph::recording();
  check_can_add(contribution);
  window_.enter(contribution);  // notes what this loss reaches as used
  if (!synchronizing_ || parameters().empty()) return;

  launched_ = 0;
  exchange_.mine.already_reduced = 0;
  for (StepGuard* guard : guards_) guard->begins(recording_);
  for (Bucket& bucket : buckets_.all()) bucket.pending = 0;
  // It calls the lambda with a zero of the dtype's C++ type.
  visit_floating("reducer", buckets_.used().dtype(), [&](auto zero) {
    auto* used = buckets_.used().data<decltype(zero)>();
    for (std::size_t i = 0; i < parameters().size(); ++i) {
      used[i] = prepare_slot(i) ? 1 : 0;
      if (parameters()[i].uses_left() > 0) ++buckets_.of(i).pending;
    }
  });
  launch_ready();
}

// Makes a gradient's slot ready for the sum. Tells whether this rank contributes something.
bool Reducer::prepare_slot(std::size_t i) {
  const Parameter& parameter = parameters()[i];
  const GradientState state = parameter.gradient_state();
  if (state == GradientState::local) return window_.used(i);
  if (state == GradientState::synchronized) {
    exchange_.mine.already_reduced = 1;
    if (communicator_.rank() == 0) return true;  // it alone sends what all ranks have
  }
  parameter.zero_grad();  // sets only the state: the first contribution overwrites
  if (parameter.uses_left() == 0) parameter.gradient_slot().fill_zero();  // there will be none
  return window_.used(i);
}

void Reducer::gradient_ready(const Parameter& parameter) {
  if (!synchronizing_) return;
  const std::size_t i = index_.at(parameter.id());
  Bucket& bucket = buckets_.of(i);
  --bucket.pending;
  for (StepGuard* guard : guards_) guard->ready(i, bucket);
  launch_ready();
  // The computing thread moves all collectives on: they end in the order of their launch.
  if (launched_ > 0) buckets_.all()[launched_ - 1].work.progress();
}

// Strictly in index order: a bucket that is ready early waits for those before it, because all
// ranks must call their collectives in the same order.
void Reducer::launch_ready() {
  if (!eager_) return;
  auto& buckets = buckets_.all();
  for (; launched_ < buckets.size() && buckets[launched_].pending == 0; ++launched_)
    launch(buckets[launched_]);
}

void Reducer::launch(Bucket& bucket) {
  const bool last = &bucket == &buckets_.all().back();
  for (StepGuard* guard : guards_) guard->launches(bucket);
  if (last && !recording_) write_metadata();
  bucket.work = transfer_->send(bucket, last);
}

void Reducer::write_metadata() {
  for (StepGuard* guard : guards_) guard->write(exchange_.mine);
  exchange_.send(buckets_);
}

void Reducer::backward_ends() {
  if (!synchronizing_ || parameters().empty()) return;
  eager_ = true;
  launch_ready();
  deferred_ = !recording_ && can_defer();
  if (recording_ || deferred_) return commit_unread();  // on GPUs: second reading
  receive_sums();
  StepOutcome outcome = exchange_.read(buckets_);
  const StepVerdict verdict = verdict_of(outcome);
  if (verdict == StepVerdict::commit)
    mark_gradients();
  else
    zero_grad();
  if (!ready_order_.done() && outcome.weight > 0) rebuild_buckets(outcome.source);
  end_step(verdict, outcome.source);
}

void Reducer::receive_sums() {
  for (Bucket& bucket : buckets_.all()) transfer_->receive(bucket);
  buckets_.all().back().work.finish();  // the host reads the trailer
}

// Makes the sums the mean, unless the step is given up: by what the ranks have told, or because a
// sum is not finite. Throws on all ranks if training stops.
StepVerdict Reducer::verdict_of(StepOutcome& outcome) {
  if (outcome.verdict == StepVerdict::commit) {
    for (const Bucket& bucket : buckets_.all())
      if (outcome.scale != 1) kernels::scale(outcome.scale, bucket.memory, bucket.memory, false);
    nonfinite_.look_in_sums(buckets_, outcome);
  }
  if (outcome.verdict == StepVerdict::stop) stop(outcome);
  return outcome.verdict;
}

void Reducer::stop(const StepOutcome& outcome) {
  end_step(StepVerdict::stop, outcome.source);
  stop_step(outcome, exchange_.all(), replicas_, nonfinite_, communicator_);
}

// Whether some rank has used a parameter says whether it has a gradient.
void Reducer::mark_gradients() {
  visit_floating("reducer", buckets_.used().dtype(), [&](auto zero) {
    const auto* used = buckets_.used().data<decltype(zero)>();
    for (std::size_t i = 0; i < parameters().size(); ++i)
      parameters()[i].set_gradient_state(used[i] > 0 ? GradientState::synchronized
                                                     : GradientState::nothing);
  });
}

void Reducer::end_step(StepVerdict verdict, int source) {
  if (verdict != StepVerdict::stop) synchronizations_ = next_synchronization();
  for (StepGuard* guard : guards_) guard->ended(verdict, source);
}

void Reducer::zero_grad() noexcept {
  for (const Parameter& parameter : parameters()) parameter.zero_grad();
}

}  // namespace lockstep::dist
