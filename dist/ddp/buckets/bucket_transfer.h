#pragma once
/// How a bucket comes to hold the sum over the ranks: what is sent, and what is done when it has
/// arrived. One of two, neither of which knows the reducer.
///
/// Thread-safety: as Communicator.

#include <memory>

#include "lockstep/dist/ddp/buckets/gradient_buckets.h"

namespace lockstep::dist {

class BucketTransfer {
 public:
  virtual ~BucketTransfer() = default;
  /// The buckets have been laid out, perhaps again.
  virtual void prepare(const GradientBuckets&) {}
  /// Sends a bucket whose gradients are complete, without waiting. With the last one goes the
  /// trailer.
  virtual Work send(const GradientBuckets::Bucket& bucket, bool last) = 0;
  /// Waits for the bucket: `memory` := the sum.
  virtual void receive(GradientBuckets::Bucket& bucket) = 0;
};

/// Sums where the communicator reaches: `wire`, which may be a copy on the host.
std::unique_ptr<BucketTransfer> all_reduce_transfer(Communicator& communicator);
/// The hook sums. The trailer travels as it is, after the hook's part: it also arrives later.
std::unique_ptr<BucketTransfer> hook_transfer(Communicator& communicator,
                                              std::shared_ptr<CommunicationHook> hook);

}  // namespace lockstep::dist
