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
///
/// A hook of your own can average, clip or add noise in `complete`. One that keeps something from
/// step to step (error feedback) is not in nn::Checkpoint: a resumed run begins with an empty one.
/// It is also not told when optim::GradScaler changes the scale, when a step is skipped, or when
/// survive() goes on without a rank. samples/power_sgd.cpp shows such a hook.

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/autograd/parameter.h"
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

  /// All of backward's kernels are launched, and the bucket has arrived: `memory` := the sum over
  /// the ranks. Called in index order. May call collectives.
  virtual void complete(const BucketView& /*bucket*/, Communicator&) {}

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
