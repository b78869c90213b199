// Second reading: gradients that are committed before the ranks' metadata is read, or without it.
//
// On a GPU the host then does not wait for the collectives of a backward before it enqueues the
// optimizer's step and the next forward:
//
//   host    | backward 1 | step 1 | forward 2 | read metadata 1 | backward 2 | step 2 | ...
//   GPU        | backward 1 | buckets |step 1 | forward 2 | ...
//
// The metadata must have nothing to change: the caller gave the total weight, so the sum is the
// mean whatever the other ranks have; this rank has used every parameter that is not frozen; no
// guard looks for infinite gradients, or makes buffers equal. An error that the metadata tells
// (ranks that disagree) stops training one step too late. The last step's metadata is read when the
// DistributedDataParallel ends, or when it is asked for a report.
//
// In a recorded step no metadata is written. The trailer's bytes travel all the same: the last
// bucket is then cut where that of any other step is, so that a ring or NCCL adds in the same order
// and the sums have the same bits. What the bytes hold is never read.

#include <algorithm>

#include "lockstep/core/gpu/graph.h"
#include "lockstep/dist/ddp/agreed_error.h"
#include "lockstep/dist/ddp/reducer.h"
#include "lockstep/dist/rendezvous/events/left_replicas.h"

namespace lockstep::dist {

bool Reducer::can_defer() const {
  const auto waits = [](const StepGuard* guard) { return guard->needs_source(); };
  return options_.deferred && ready_order_.done() && exchange_.mine.already_reduced == 0 &&
         !options_.hook && !looks_in_gradients(options_.nonfinite) &&
         window_.first().kind == Contribution::Divisor::given &&
         buckets_.all().back().wire.device() != Device{} && window_.all_used() &&
         std::ranges::none_of(guards_, waits);
}

void Reducer::commit_unread() {
  if (recording_) {
    StepGraph::depends_on(paused_, [this] {
      check_before_replay();
      return *paused_ == 0;  // as now
    });
    StepGraph::at_replay([this, life = std::weak_ptr(paused_)] {
      if (!life.expired()) synchronizations_ = next_synchronization();
    });
    StepGraph::at_failure([this, life = std::weak_ptr(paused_), before = synchronizations_] {
      if (!life.expired()) synchronizations_ = before;
    });
  }
  for (Bucket& bucket : buckets_.all()) transfer_->receive(bucket);
  for (const Parameter& parameter : parameters())
    parameter.set_gradient_state(parameter.requires_grad() ? GradientState::synchronized
                                                           : GradientState::nothing);
  trace_.defer_verdict();
  end_step(StepVerdict::commit, 0);
}

void Reducer::check_before_replay() {
  settle();  // a replay writes over the metadata
  if (replicas_.differ_before_replay()) {
    const Problem problem = replicas_.explain_difference();
    stop_all_ranks(communicator_, "[step graph] " + problem.text, problem.blame);
  }
  nonfinite_.check_parameters("step graph", true);
}

// Not on the current stream: what was enqueued there since then would have to be waited for. While
// a step is recorded, nothing has been enqueued there, and nothing may be.
void Reducer::settle() {
  check_world_lives("backward");
  if (!std::exchange(deferred_, false)) return;
  const StepGraph::Pause pause;
  std::optional<StreamGuard> reading(Stream::reading(buckets_.all().back().wire.device()));
  buckets_.all().back().work.finish();
  const StepOutcome outcome = exchange_.read(buckets_);
  if (!pause.paused()) reading.reset();
  if (outcome.verdict == StepVerdict::stop) stop(outcome);
  // The verdict came after the kernels of its step: what these complain of is known now.
  Stream::current(buckets_.all().back().wire.device()).check();
}

namespace {

// The program may end without a wait for the last step's kernels.
void hear_last_complaints(Device device) {
  try {
    Stream::current(device).synchronize();
  } catch (const DeviceError&) {  // the rank that used the device has been told
  }
}

}  // namespace

// The last backward's metadata, and what the last replays have left. Whatever becomes of it, the
// collective that brings the metadata must not outlive its memory.
Reducer::~Reducer() {
  if (world_.ended() || birth_.forked_since()) return;
  const bool unwinding = birth_.unwinding();
  try {
    if (unwinding) {
      if (deferred_) buckets_.all().back().work.finish();
    } else {
      settle();
      if (!buckets_.all().empty()) hear_last_complaints(buckets_.all().back().wire.device());
      if (replicas_.saw_nonfinite_in_last_replays()) nonfinite_.check_at_end("step graph");
    }
  } catch (const CommError&) {  // the world is broken, which all ranks know
  } catch (...) {
    if (!unwinding) leave_error(communicator_.membership().thread);
  }
}

}  // namespace lockstep::dist
