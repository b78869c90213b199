#pragma once
/// Distributed data parallelism: replicas that start equal and step on the same gradient.
///
///   dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), world);
///
/// Construction is collective:
/// 1. compares the models: names, shapes, dtypes, what requires a gradient, order, options. If two
///    ranks differ, every rank throws a StateError that names the first difference;
/// 2. broadcasts rank 0's parameters and buffers;
/// 3. gives the gradients their memory in buckets, and watches them (dist/ddp/reducer.h).
///
/// From then on every backward that reaches the parameters leaves the weighted mean over the ranks
/// in their gradients: sum_r(w_r g_r) / sum_r(w_r), see Tape::backward. The model itself is called
/// as ever. Afterwards a managed parameter cannot be moved, and one that was made or replaced later
/// is refused, by name: by backward if the loss reaches managed ones beside it, else by an
/// optimizer that has managed ones beside it. (One that meets neither is out of sight.) It must be
/// destroyed before the World it was made with.
///
/// Gradient accumulation: backwards that do not synchronize, and one that does.
///
///   for (int i = 0; i < 4; ++i) {
///     Tape tape;
///     tape.backward(loss(micro_batch[i]), Weight{rows(i)}, {.sync = i == 3});
///   }
///   optimizer.step();
///
/// Ranks whose data ends at different times:
///
///   for (const Batch& batch : mine) step(batch.x, batch.y, Weight{batch.rows});
///   while (ddp.join()) step(no_rows, no_labels, Weight{0});

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/autograd/parameter.h"
#include "lockstep/dist/collectives/object_collectives.h"
#include "lockstep/dist/ddp/buffer_sync.h"
#include "lockstep/dist/ddp/reducer.h"
#include "lockstep/dist/world/world.h"

namespace lockstep::dist {

/// The same on all ranks. The three sizes are in MiB (2^20 bytes) of gradients, and may be fractions.
/// One that is not positive and finite throws UsageError; one below a byte counts as a byte.
struct DdpOptions {
  double bucket_cap_mb = 25;   ///< a bucket of several gradients is at most this large
  double first_bucket_mb = 1;  ///< the first bucket is closed as soon as it holds this much
  double last_bucket_mb = 1;   ///< the last bucket is the smallest that holds this much
  RebuildBuckets rebuild_buckets = RebuildBuckets::ready_order;
  std::string bucket_layout =
      {};  ///< of a checkpoint (DistributedDataParallel::bucket_layout); then
           ///< nothing is planned
  BufferMode buffers = BufferMode::broadcast;
  NonFinite nonfinite = NonFinite::ignore;
  /// On a GPU: the host does not wait for a backward's collectives, but reads what ranks told each
  /// other when the next one begins. So last_step() is of the step before, and an error (ranks that
  /// disagree, a rank without data where no Weight gave a total) stops training one step late.
  bool deferred = false;
  /// What travels instead of the gradients (dist/ddp/communication_hook.h), an object per rank; null: they do.
  std::shared_ptr<CommunicationHook> hook = {};
};

/// Backwards only accumulate while it lives. It must not outlive its DistributedDataParallel.
class [[nodiscard]] NoSync {
 public:
  explicit NoSync(Reducer& reducer) : reducer_(reducer) { reducer_.pause(); }
  ~NoSync() { reducer_.resume(); }
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  Reducer& reducer_;
};

class DistributedDataParallel {
 public:
  DistributedDataParallel(std::vector<Parameter> parameters, std::vector<Buffer> buffers,
                          const World& world, DdpOptions options = {});
  /// The same over any communicator, which must outlive it.
  DistributedDataParallel(std::vector<Parameter> parameters, std::vector<Buffer> buffers,
                          Communicator& communicator, DdpOptions options = {});

  /// A scope in which backwards only accumulate, whatever they ask for.
  NoSync no_sync() { return NoSync(*reducer_); }
  /// Collective, in the place of a synchronizing backward: closes this rank's window, or takes part
  /// with nothing, as a rank must whose loss reaches no parameter (`weight` is what that loss
  /// counts for).
  void synchronize(double weight = 0) { reducer_->synchronize(weight); }

  /// As the optimizer's, for all parameters: also those that are in no optimizer.
  void zero_grad();

  /// For a rank that has no more data. True while others may have some: this rank then takes one
  /// more step with them, on no rows (or with synchronize()), and asks again. The optimizer's step
  /// is part of it, so that replicas stay alike. Once no rank has data left, it is false on all.
  bool join();

  /// Local SGD: after steps that were taken with `step(optim::local)`, makes the replicas equal
  /// again: parameters and floating buffers := their means over the ranks. Collective.
  void average_parameters();

  /// What optim::Overlap calls: see Reducer::overlap.
  void overlap(EarlyStepper& stepper) { reducer_->overlap(stepper); }
  void end_overlap(EarlyStepper& stepper) noexcept { reducer_->end_overlap(stepper); }

  /// With DdpOptions::deferred: reads what ranks told each other in the last backward now. Called
  /// after the last step of training, it throws what there may be to throw.
  void settle() { reducer_->settle(); }

  /// What the last synchronization came to; its verdict is the same on every rank.
  const StepReport& last_step() const { return reducer_->last_step(); }
  /// Who computes how long, and who waits, since construction.
  const StepStatistics& statistics() const { return reducer_->statistics(); }

  /// For a checkpoint: with it, a run that is resumed has the same buckets from its first step on.
  std::string bucket_layout() const { return to_text(reducer_->layout()); }

  const Reducer& reducer() const { return *reducer_; }

 private:
  std::unique_ptr<BufferSync> buffers_, averaged_buffers_;
  std::unique_ptr<Reducer> reducer_;
  bool joined_ = false;
};

}  // namespace lockstep::dist
