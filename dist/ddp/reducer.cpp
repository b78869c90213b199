#include "lockstep/dist/ddp/reducer.h"

#include "lockstep/core/gpu/graph.h"
#include "lockstep/core/trace/recorder.h"
#include "lockstep/dist/ddp/agreed_error.h"
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
  if (!recording_) replicas_.begin_step();  // second reading: proves that the replicas are equal
  bad_ = {};
  exchange_.mine.already_reduced = 0;
  ready_order_.begin();
  for (GradientBuckets::Bucket& bucket : buckets_.all()) bucket.pending = 0;
  // It calls the lambda with a zero of the dtype's C++ type.
  visit_floating("reducer", buckets_.used().dtype(), [&](auto zero) {
    auto* used = buckets_.used().data<decltype(zero)>();
    for (std::size_t i = 0; i < parameters().size(); ++i) {
      used[i] = prepare_slot(i) ? 1 : 0;
      if (parameters()[i].pending() > 0) ++buckets_.of(i).pending;
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
  if (parameter.pending() == 0) parameter.gradient_slot().fill_zero();  // there will be none
  return window_.used(i);
}

void Reducer::gradient_ready(const Parameter& parameter) {
  if (!synchronizing_) return;
  const std::size_t i = index_.at(parameter.id());
  ready_order_.note(i);
  GradientBuckets::Bucket& bucket = buckets_.of(i);
  --bucket.pending;
  trace::ready(parameter.name(), bucket.index, bucket.pending);
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

void Reducer::launch(GradientBuckets::Bucket& bucket) {
  const bool last = &bucket == &buckets_.all().back();
  trace::launched(bucket.name, bucket.index, bucket.memory.bytes());
  if (recording_) {  // a step for StepGraph (GPUs): nothing that the host would read travels
    bucket.work = communicator_.all_reduce(bucket.memory, bucket.name);
    return;
  }
  if (looks_in_gradients(options_.nonfinite)) bad_.look_in(bucket);
  if (last) write_metadata();
  if (options_.hook) return launch_hook(bucket, last);
  copy_to_host(bucket);
  bucket.work = communicator_.all_reduce(bucket.wire, bucket.name);
}

void Reducer::write_metadata() {
  window_.write(exchange_.mine);  // weight and divisor
  exchange_.mine.replicas = replicas_.sum();
  if (replicas_.saw_nonfinite()) bad_.look_in(parameters());
  exchange_.mine.bad_parameter = bad_.parameter;
  exchange_.mine.bad_element = bad_.element;
  exchange_.write(buckets_);
}

void Reducer::backward_ends() {
  if (!synchronizing_ || parameters().empty()) return;
  eager_ = true;
  launch_ready();
  deferred_ = !recording_ && can_defer();
  if (recording_ || deferred_) return commit_unread();  // on GPUs: second reading
  receive_sums();
  const StepOutcome outcome = exchange_.read(buckets_);
  if (outcome.verdict == StepVerdict::stop) stop(outcome);
  const bool finite = outcome.verdict == StepVerdict::commit && apply_scale(outcome.scale);
  commit(finite ? outcome.verdict : StepVerdict::skip, outcome.source);
  if (!ready_order_.done() && outcome.weight > 0) rebuild_buckets(outcome.source);
  exchange_.end_step();
}

void Reducer::receive_sums() {
  for (GradientBuckets::Bucket& bucket : buckets_.all()) {
    if (options_.hook) {
      complete_hook(bucket);
    } else {
      bucket.work.wait();
      copy_from_host(bucket);
    }
  }
  buckets_.all().back().work.finish();  // the host reads the trailer
}

// Makes the sums the mean. False if the step is to be skipped, because a sum is not finite.
bool Reducer::apply_scale(double scale) {
  for (const GradientBuckets::Bucket& bucket : buckets_.all())
    if (scale != 1) kernels::scale(scale, bucket.memory, bucket.memory, false);
  return !looks_in_gradients(options_.nonfinite) || sums_are_finite();
}

// The gradients are the mean, or are given up. Then DDP brings the model's buffers up to date
// (after_sync).
void Reducer::commit(StepVerdict verdict, int source) {
  exchange_.report().verdict = verdict;
  trace::verdict(verdict == StepVerdict::commit ? "commit" : "skip");
  if (verdict == StepVerdict::commit) {
    visit_floating("reducer", buckets_.used().dtype(), [&](auto zero) {
      const auto* used = buckets_.used().data<decltype(zero)>();
      for (std::size_t i = 0; i < parameters().size(); ++i)
        parameters()[i].set_gradient_state(used[i] > 0 ? GradientState::synchronized
                                                       : GradientState::nothing);
    });
  } else {
    ++exchange_.statistics().skipped;
    zero_grad();
  }
  window_.close();
  synchronizations_ = next_synchronization();
  if (options_.after_sync) options_.after_sync(verdict, source);
}

void Reducer::zero_grad() noexcept {
  for (const Parameter& parameter : parameters()) parameter.zero_grad();
}

}  // namespace lockstep::dist
