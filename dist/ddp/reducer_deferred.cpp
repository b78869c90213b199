// Second reading: gradients that are committed before the ranks' metadata is read, or without it.
//
// On a GPU the host then does not wait for the collectives of a backward before it enqueues the
// optimizer's step and the next forward:
//
//   host    | backward 1 | step 1 | forward 2 | read metadata 1 | backward 2 | step 2 | ...
//   GPU        | backward 1 | buckets |step 1 | forward 2 | ...
//
// The metadata must have nothing to change: the total weight is known, this rank has used every
// parameter, no guard looks for infinite gradients. Whether this holds on all ranks is seen one
// step late. If not, the error stops training after one step too many. The last step's metadata is
// read when the DistributedDataParallel ends, or when it is asked for a report.
//
// In a recorded step no metadata is written. The trailer's bytes travel all the same: the last
// bucket is then cut where that of any other step is, so that a ring or NCCL adds in the same order
// and the sums have the same bits. What the bytes hold is never read.

#include "lockstep/core/gpu/graph.h"
#include "lockstep/dist/ddp/agreed_error.h"
#include "lockstep/dist/ddp/reducer.h"

namespace lockstep::dist {

bool Reducer::can_defer() const {
  return options_.deferred && ready_order_.done() && exchange_.mine.already_reduced == 0 &&
         !options_.hook && !looks_in_gradients(options_.nonfinite) &&
         window_.first().total_known() && buckets_.all().back().wire.device() != Device{} &&
         window_.all_used();
}

void Reducer::commit_unread() {
  if (recording_)
    StepGraph::depends_on([this, life = std::weak_ptr(paused_)] {
      check<StateError>(!life.expired(),
                        "[step graph] the DistributedDataParallel of the recorded step has ended");
      check_before_replay();
      return true;
    });
  for (Bucket& bucket : buckets_.all()) transfer_->receive(bucket);
  for (const Parameter& parameter : parameters())
    parameter.set_gradient_state(GradientState::synchronized);
  trace_.leave_out_verdict();
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
  check<StateError>(
      outcome.scale == 1,
      "[backward] the step before this one was taken on sums over {:g}, but the ranks "
      "with data weighed {:g} in all: where ranks may have no data, do not defer the "
      "verdict (DdpOptions::deferred)",
      outcome.weight * outcome.scale, outcome.weight);
}

// The collective whose metadata was never read must not outlive the memory that it uses.
Reducer::~Reducer() {
  if (!deferred_ || world_.ended()) return;
  try {
    buckets_.all().back().work.finish();
  } catch (const Error&) {  // an exception is on its way already, or the world is broken
  }
}

}  // namespace lockstep::dist
