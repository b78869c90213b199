#pragma once
/// Sends this rank's StepMetadata behind the last bucket, and reads what all ranks have sent. Keeps
/// the statistics of all steps.
///
/// Thread-safety: as Communicator.

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/dist/collectives/object_collectives.h"
#include "lockstep/dist/ddp/guards/step_guard.h"

namespace lockstep::dist {

/// What the last synchronization came to, the same on every rank.
struct StepReport {
  StepVerdict verdict = StepVerdict::commit;
  double weight = 0;  ///< of all ranks' data
  bool all_joined = false;
  /// By rank. Computing: since the last synchronization, without waiting. Waiting: for other ranks,
  /// in the step before this one.
  std::vector<double> compute_seconds, wait_seconds;
};

/// Sums over all synchronizations.
struct StepStatistics {
  std::int64_t steps = 0, skipped = 0;
  std::vector<double> compute_seconds, wait_seconds;  ///< by rank
  double exposed_seconds = 0;  ///< of this rank: Communicator::exposed(), whatever called
  /// By rank: in how many steps it computed longest, so that the others waited for it.
  std::vector<std::int64_t> slowest;
};

/// Whether windows with different numbers of a loader's batches end: from then on the ranks
/// are at different places of the epoch.
bool windows_are_ragged(std::span<const StepMetadata> metadata);

/// Which ranks stand against each other where the steps do not fit together: the ranks by the value
/// of the first field that differs.
RanksByValue sides(std::span<const StepMetadata> metadata);

/// Three jobs, which share a step's metadata:
///   exchange     `mine`, send, read: this rank's metadata goes, that of all ranks comes
///   clock        write, ended (as a guard): how long this rank computed, and waited for others
///   report       report, statistics: what came of the last step, and of all steps
class StepExchange final : public StepGuard {
 public:
  /// `communicator` must outlive this.
  StepExchange(Communicator& communicator, NonFinite policy);

  /// What this rank sends next.
  StepMetadata mine;

  /// Adds the times to it.
  void write(StepMetadata& metadata) override;
  /// Puts `mine` behind the last bucket, which has not been sent. An optimizer's steps are told
  /// once: takes mine.steps_digest back to 0.
  void send(const GradientBuckets& buckets);
  /// The last bucket has arrived: what all ranks make of all ranks' metadata. Waits for the GPU.
  StepOutcome read(const GradientBuckets& buckets);
  /// The synchronization is over: computing begins.
  void ended(StepVerdict verdict, int source) override;

  const std::vector<StepMetadata>& all() const { return all_; }  ///< by rank, as last read
  StepReport& report() { return report_; }
  const StepReport& report() const { return report_; }
  StepStatistics& statistics() { return statistics_; }
  const StepStatistics& statistics() const { return statistics_; }

 private:
  Communicator& communicator_;
  NonFinite policy_;
  std::vector<StepMetadata> all_;
  StepReport report_;
  StepStatistics statistics_;
  Seconds computing_since_{0};  // by the communicator's clock
  Seconds waited_before_{0};    // Communicator::waited() at that time
  Seconds exposed_before_{0};   // Communicator::exposed() at the beginning
  double last_wait_ = 0;        // seconds
  bool ragged_ = false;         // windows had different lengths: origins say nothing any more
};

}  // namespace lockstep::dist
