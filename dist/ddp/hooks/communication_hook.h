#pragma once
/// Communication hooks: what travels in the place of a bucket's gradients.
///
///   dist::DistributedDataParallel ddp(parameters, buffers, world,
///                                     {.hook = dist::compress(DType::bf16)});
///
/// Without a hook a bucket is all-reduced where it lies. A hook gets the bucket and must leave the
/// sum over the ranks in it, or its approximation of the sum, with the same bits on all ranks.
/// Nothing else of the reducer changes. Losses are weighted before backward, so a hook only sums.
/// It sees an accumulation window once, as the sum of its parts. A parameter that this rank has not
/// used is there as zeros. What an earlier backward has reduced is there on rank 0 alone. The step
/// metadata travels beside the hook, uncompressed.
///
///   hook             bytes, of an all-reduce's                   the sum
///   none             all                                         f32
///   compress(bf16)   1/2                                         each contribution and the sum
///                                                                rounded once, to 8 bits
///   compress(f16)    1/2                                         to 11 bits; beyond 65504 it is
///                                                                infinite (NonFinite sees it)
///   power_sgd        r (m + n) / (m n) of an (m, n) matrix       of rank r; the rest is kept for
///                    (power_sgd.h)                               later steps
///
/// A hook of your own can average, clip or add noise in `complete`.

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/autograd/parameter.h"
#include "lockstep/core/shard.h"
#include "lockstep/dist/collectives/communicator.h"

namespace lockstep::dist {

/// A bucket as a hook sees it. What it views lives as long as the layout of the buckets.
struct BucketView {
  int index = 0;                          ///< 0, 1, ...: the order of launching
  std::string_view name;                  ///< "bucket 0": for the names of the hook's collectives
  Tensor memory;                          ///< (numel,): all gradients, and padding, which is zero
  std::span<const Parameter> parameters;  ///< their gradient_slot()s are views of `memory`
};

/// One object per rank and reducer. The rank's thread uses it. All ranks call its functions in the
/// same order, so they also call its collectives in the same order.
class CommunicationHook {
 public:
  virtual ~CommunicationHook() = default;

  /// With its options: construction refuses ranks whose hooks have different names.
  virtual std::string name() const = 0;

  /// The buckets have been laid out, perhaps again. Allocate here what travels. (A parameter may
  /// have moved to another bucket; Parameter::id() identifies it.)
  virtual void prepare(std::span<const BucketView> /*buckets*/, Communicator&) {}

  /// This rank's gradients are complete: starts to send them, without waiting. Backward is still
  /// running. Called in index order.
  virtual Work reduce(const BucketView& bucket, Communicator& communicator) = 0;

  /// The Work of `reduce` has ended, and this rank has seen it: while backward still runs, at the
  /// next gradient that is ready, or after it. Called in index order, once per bucket, before its
  /// complete(). Ranks see it at different moments: so it must not call collectives.
  virtual void arrived(const BucketView& /*bucket*/) {}

  /// All of backward's kernels are launched, and the bucket has arrived: `memory` := the sum over
  /// the ranks. Called in index order. May call collectives.
  virtual void complete(const BucketView& /*bucket*/, Communicator&) {}

  /// The ranks have agreed to give up the step (NonFinite::skip), after `complete`. What the hook
  /// learned from its gradients may be infinite or NaN.
  virtual void skipped() {}

  /// Gradients are from now on `ratio` times as large (optim::GradScaler): so must be what the hook
  /// kept of earlier ones.
  virtual void scale_changes(double /*ratio*/) {}

  /// Whether what the ranks' hooks keep differs: a job that goes on without lost ranks refuses such
  /// a hook (dist/world/survive.h).
  virtual bool keeps_parts() const { return false; }
  /// What this rank's hook keeps from step to step, by name, for a checkpoint.
  using State = std::map<std::string, Tensor>;
  virtual State state_dict() const { return {}; }
  /// Takes it back, after the buckets have been laid out; under DDP on all ranks. Throws StateError
  /// if it does not fit.
  virtual void load_state_dict(const State& state);
  /// The same of a run on another number of ranks: its ranks' states, of which this rank takes over
  /// those of rank, rank + size, ...
  virtual void load_of_other_world(std::span<const State> states, Shard mine);

  /// A reducer takes the hook until the result is gone. Throws StateError while another one has it:
  /// what a hook keeps belongs to the buckets of one reducer.
  Observation bind();

 private:
  std::weak_ptr<const void> bound_;
};

/// f32 gradients travel as f16 or bf16. It needs half their memory in addition. Throws DTypeError
/// for any other dtype, and for a bucket whose gradients are not f32.
std::shared_ptr<CommunicationHook> compress(DType dtype);

}  // namespace lockstep::dist
