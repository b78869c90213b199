#pragma once
/// What takes part in a synchronization beside the sum of the gradients. The reducer tells its
/// guards where it is; each of them looks at its own matter, and writes its piece of the metadata
/// (step_metadata.h), which all ranks read together:
///
///     begins | ready, ready, ...           launches (a bucket) ... | write | ... | ended (verdict)
///            | gradients become complete   before each is sent     | once  |     | on all ranks
///
///     guard                what it does
///     AccumulationWindow   the weight of this rank's data, and where it comes from
///     ReplicaCheck         the sum of all steps' fingerprints
///     NonFiniteCheck       the first number that is infinite or NaN
///     ReadyOrder           the order of the next layout
///     StepExchange         times, statistics, the report
///     StepTrace            instants of a trace
///     BufferSync           running statistics become equal at the end
///
/// What all ranks decide from all pieces: decide_step (step_metadata.h). NonFiniteCheck alone adds
/// to that: it looks in the sums. A stop says: contradiction (step_text.cpp), stop_step.
///
/// Guards are called in the order of Reducer::guards_ (reducer_setup.cpp). Two places matter:
/// ReplicaCheck writes before NonFiniteCheck, which asks it what steps have left; StepExchange is
/// last, because it takes the times after everything else.

#include <cstddef>

#include "lockstep/dist/ddp/buckets/gradient_buckets.h"
#include "lockstep/dist/ddp/step_metadata.h"

namespace lockstep::dist {

class StepGuard {
 public:
  virtual ~StepGuard() = default;
  /// A synchronizing backward begins, before its first kernel. `recorded`: as a part of a recorded
  /// step, in which no metadata travels and nothing is read.
  virtual void begins(bool /*recorded*/) {}
  /// The gradient of a parameter, by its index, is complete on this rank. Not called for parameters
  /// that the loss does not reach.
  virtual void ready(std::size_t /*parameter*/, const GradientBuckets::Bucket&) {}
  /// All gradients of the bucket are. It is sent next.
  virtual void launches(const GradientBuckets::Bucket&) {}
  /// Writes its piece. Called once, before the last bucket is sent.
  virtual void write(StepMetadata&) {}
  /// The gradients hold the mean, or are given up. `source`: the first rank with data. Of a verdict
  /// that was deferred: at once as `commit`, and once more if it turns out to be `stop`.
  virtual void ended(StepVerdict, int /*source*/) {}
  /// Whether it must know the source: then no verdict is deferred.
  virtual bool needs_source() const { return false; }
};

}  // namespace lockstep::dist
