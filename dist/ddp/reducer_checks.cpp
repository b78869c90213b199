// Second reading: what a reducer refuses, and how it ends after an error.

#include "lockstep/core/gpu/graph.h"
#include "lockstep/core/hash.h"
#include "lockstep/dist/ddp/agreed_error.h"
#include "lockstep/dist/ddp/reducer.h"

namespace lockstep::dist {
namespace {

// What a backward must be like in a step that is being recorded (core/gpu/graph.h). Such a step
// runs again without the host, so nothing may depend on what the host would read: no metadata
// travels. The total is known, every parameter is used, and the sums are the gradients. The step
// before the recording has checked that the ranks agree, and their calls are compared while the
// recording is made. Before every 64th replay the host compares what the steps have added
// (replica_check.h).
void check_recordable(const Contribution& contribution, bool accumulates, std::string_view refusal,
                      const GradientBuckets& buckets) {
  const auto refuse = [](bool bad, std::string_view why) {
    check<NotRecordable>(!bad, "[backward] in a step that is being recorded {}", why);
  };
  refuse(!refusal.empty(), refusal);
  refuse(accumulates, "gradients cannot be accumulated over several backwards");
  refuse(!contribution.total_known(),
         "the total weight must be known when backward begins: give Weight a total, or no Weight");
  for (const Parameter& parameter : buckets.parameters()) {
    if (!parameter.requires_grad()) continue;  // on no rank: the step before has said so
    check<NotRecordable>(
        parameter.uses_left() > 0,
        "[backward] in a step that is being recorded every parameter must be used, "
        "'{}' is not",
        parameter.name());
    check<NotRecordable>(
        parameter.gradient_state() == GradientState::nothing,
        "[backward] in a step that is being recorded gradients begin at nothing, and "
        "that of '{}' does not: zero_grad() first",
        parameter.name());
  }
}

}  // namespace

void Reducer::check_world_lives(std::string_view operation) const {
  if (world_.ended())
    (void)world_.get(fmt::format("[{}] the DistributedDataParallel of '{}'", operation,
                                 parameters().empty() ? "" : parameters().front().name()));
}

void Reducer::check_can_add(const Contribution& contribution) const {
  check<StateError>(!synchronizing_ || !drifted_,
                    "[backward] an optimizer has stepped on this rank's own gradients "
                    "(optim::local): the replicas differ until average_parameters()");
  check_level(options_.deterministic, contribution, buckets_, options_.hook.get(), communicator_);
  const bool adds_only_to_local = contribution.kind == Contribution::Divisor::summed ||
                                  !synchronizing_ || contribution.lanes > 0;
  for (const Parameter& parameter : parameters())
    check<StateError>(
        !adds_only_to_local || parameter.gradient_state() != GradientState::synchronized,
        "[backward] the gradient of '{}' is synchronized already; a window, or a weight whose "
        "total is to be summed, cannot be added to it: zero_grad() first (if it is in no "
        "optimizer, DistributedDataParallel::zero_grad()), or give a Weight with a total",
        parameter.name());
  if (recording_)
    check_recordable(contribution, !synchronizing_ || window_.open(), why_not_recorded(), buckets_);
}

std::string_view Reducer::why_not_recorded() const {
  if (looks_in_gradients(options_.nonfinite))
    return "nobody can look for infinite gradients: NonFinite::report";
  if (options_.hook) return "there can be no communication hook";
  for (const GradientBuckets::Bucket& bucket : buckets_.all())
    if (bucket.memory.device() != bucket.wire.device())
      return "gradients cannot travel through the host: take nccl, or transport ipc";
  return "";
}

// The other ranks go on to launch this backward's buckets. Nothing that this rank sends later may
// be taken for them.
void Reducer::backward_failed() noexcept {
  replicas_.error_told();
  if (ranks() > 1 && !world_.ended())
    if (const auto message = news_for_others())
      communicator_.abort(fmt::format("[backward] rank {} left it by an exception: {}",
                                      communicator_.membership().known_as(communicator_.rank()),
                                      *message));
  window_.close();
  zero_grad();
}

void Reducer::synchronize(double weight) {
  check<UsageError>(is_weight(weight), "[synchronize] weight {}: it is 0 or from 1e-15 to 1e15",
                    weight);
  check<StateError>(*paused_ == 0, "[synchronize] within a no_sync scope: end that first");
  try {
    backward_begins({weight, 1, Contribution::Divisor::none, true});
    backward_ends();
  } catch (...) {
    backward_failed();
    throw;
  }
}

void Reducer::step_begins(const Parameter& parameter, bool local) {
  check_world_lives("step");
  if (parameter.gradient_state() != GradientState::local) return;
  check<StateError>(local,
                    "[step] the gradient of '{}' is not synchronized: run a backward that "
                    "synchronizes before the step",
                    parameter.name());
  window_.make_local_mean(index_.at(parameter.id()));
}

// Two optimizers may step in another order on another rank: a sum of their digests.
void Reducer::stepped(const std::weak_ptr<Stepper>& stepper, std::uint64_t options, bool local) {
  if (StepGraph::recording())
    StepGraph::at_failure([this, life = std::weak_ptr(paused_), drifted = drifted_,
                           digest = exchange_.mine.steps_digest] {
      if (life.expired()) return;
      drifted_ = drifted;
      exchange_.mine.steps_digest = digest;
    });
  replicas_.note(stepper);
  if (const auto& survival = communicator_.membership().survival) survival->marked = false;
  drifted_ = drifted_ || (local && ranks() > 1);
  if (!local) exchange_.mine.steps_digest += Fnv1a().add(options).value();
}

void Reducer::requires_grad_changes(const Parameter& parameter, bool yes) {
  Fnv1a digest;  // freezing and thawing again is nothing
  digest.add(index_.at(parameter.id()));
  exchange_.mine.steps_digest += yes ? digest.value() : -digest.value();
}

void Reducer::check_replicas() {
  settle();
  replicas_.check("check_replicas");
  nonfinite_.check_parameters("check_replicas", false);
}

}  // namespace lockstep::dist
