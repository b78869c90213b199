#pragma once
/// Communication hooks: what travels instead of a bucket's gradients.
///
///   dist::DistributedDataParallel ddp(parameters, buffers, world,
///                                     {.hook = dist::compress(DType::bf16)});
///
/// Without a hook a bucket is all-reduced where it lies. A hook is handed the bucket instead, and
/// has to leave the sum over the ranks in it, or what it takes for the sum: with the same bits on
/// all ranks. Nothing else of the reducer changes. Losses are weighted before backward, so a hook
/// only sums; a window of several backwards is seen once, as their sum; a parameter that this rank
/// has not used is there as zeros; what an earlier backward has synchronized is carried by rank 0
/// alone. The step metadata travels beside the hook, uncompressed.
///
///   hook             on the wire, of an all-reduce's bytes       the sum
///   none             all                                         f32
///   compress(bf16)   1/2                                         each contribution and the sum
///                                                                rounded once, to 8 bits
///   compress(f16)    1/2                                         to 11 bits; beyond 65504 it is
///                                                                infinite (NonFinite sees it)
///   power_sgd        r (m + n) / (m n) of an (m, n) matrix       of rank r; what is left out is
///                    (dist/ddp/power_sgd.h)                          kept for later steps
///
/// Average instead of sum, clip, add noise: a hook of one's own does that in `complete`.

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

/// One object per rank and reducer; used by the rank's thread. The collectives that it calls are
/// called by all ranks in the same order, since all of these are.
class CommunicationHook {
 public:
  virtual ~CommunicationHook() = default;

  /// With its options: ranks whose hooks have different names are refused at construction.
  virtual std::string name() const = 0;

  /// The buckets have been laid out, or laid out anew: the place to allocate what travels. (A
  /// parameter may have moved to another bucket; it is known by Parameter::id().)
  virtual void prepare(std::span<const BucketView> /*buckets*/, Communicator&) {}

  /// This rank's gradients are complete: sends them on their way, without waiting. Backward is
  /// still running. Called in index order.
  virtual Work reduce(const BucketView& bucket, Communicator& communicator) = 0;

  /// The Work of `reduce` has ended: `memory` := the sum over the ranks. Called in index order,
  /// after the last kernel of backward, and may take further collectives to do it.
  virtual void complete(const BucketView& /*bucket*/, Communicator&) {}

  /// The ranks have agreed to give the step up (NonFinite::skip), after `complete`: whatever was
  /// learned from its gradients may be infinite or NaN.
  virtual void skipped() {}
};

/// f32 gradients as f16 or bf16 on the wire; takes half their memory besides. Throws DTypeError for
/// any other dtype, and when a bucket's gradients are not f32.
std::shared_ptr<CommunicationHook> compress(DType dtype);

}  // namespace lockstep::dist
