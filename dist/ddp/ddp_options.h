#pragma once
/// The options of a DistributedDataParallel, from the call of its constructor to the reducer.

#include <memory>
#include <string>
#include <vector>

#include "lockstep/dist/ddp/deterministic.h"
#include "lockstep/dist/ddp/guards/buffer_sync.h"
#include "lockstep/dist/ddp/hooks/communication_hook.h"
#include "lockstep/dist/ddp/step_metadata.h"

namespace lockstep::dist {

/// The same on all ranks. The three sizes are in MiB (2^20 bytes) of gradients, and may be
/// fractions. A size that is not positive and finite throws UsageError; a size below a byte counts
/// as a byte.
struct DdpOptions {
  /// See BucketCaps for what the three do.
  double bucket_cap_mb = 25;
  double first_bucket_mb = 1;
  double last_bucket_mb = 1;
  /// After the first step, lay the buckets out once more, in the order in which gradients became
  /// ready.
  bool rebuild_buckets = true;
  /// Of a checkpoint (DistributedDataParallel::bucket_layout): then the layout never changes.
  std::string bucket_layout = {};
  /// What the bits must not depend on. A batch with lanes asks for `world`.
  Deterministic deterministic = Deterministic::run;
  BufferMode buffers = BufferMode::broadcast;
  NonFinite nonfinite = NonFinite::report;
  /// On a GPU: the host does not wait for a backward's collectives where their sum is known to be
  /// the mean: the Weight gives the total (a Loader's does), all parameters were used, NonFinite
  /// does not look in gradients, there are no buffers to be made equal. It reads what the ranks
  /// told each other when the next backward begins, so that an error (ranks that disagree) stops
  /// training one step late. False: each backward waits.
  bool deferred = true;
  /// At every step, compare the replicas by a fingerprint (replica_check.h). False: only
  /// DistributedDataParallel::check_replicas() compares.
  bool check_replicas = true;
  /// What travels in the place of the gradients (communication_hook.h); one object per rank. Null:
  /// the gradients.
  std::shared_ptr<CommunicationHook> hook = {};
};

/// A line for each option: the ranks compare them.
std::string to_text(const DdpOptions& options);
/// Its sizes in bytes. Throws UsageError for a size that makes no sense.
BucketCaps caps_of(const DdpOptions& options);

}  // namespace lockstep::dist
