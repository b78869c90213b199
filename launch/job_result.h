#pragma once
/// What a launcher reports when its ranks have ended: a pure function of how each of them ended.
/// May be called by any thread.

#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/dist/rendezvous/events/failure_record.h"
#include "lockstep/dist/rendezvous/events/left_replicas.h"
#include "lockstep/launch/job.h"

namespace lockstep::launch {

/// How one rank ended.
struct RankOutcome {
  int order = 0;  ///< 0 for the rank that ended first
  int exit_code = 0;
  int signal = 0;              ///< the signal that killed it, 0 if none did
  bool stopped = false;        ///< it ended after the launcher had told the ranks to stop
  bool lost = false;           ///< the others go on without it; nothing else is known of it
  bool survives = false;       ///< its program has called survive()
  bool left_behind = false;    ///< its program has not; the others have gone on with other ranks
  bool in_world = false;       ///< it is in the World of its job
  bool parted = false;         ///< that World has ended
  bool out_of_memory = false;  ///< since the start the kernel has killed a process for memory
  std::optional<dist::FailureRecord> record{};  ///< what it reported about its failure
  std::vector<dist::ReplicaRecord> replicas{};  ///< those that it left when they ended
  std::deque<std::string> last_lines{};         ///< of its stderr, unless the user has seen them

  bool failed() const { return exit_code != 0 || signal != 0; }
  bool ended_well() const { return !failed() && !lost; }
  /// By SIGKILL, itself or (as shells say it, 128 + 9) what it had started.
  bool killed() const;
};

/// A replica that a rank has left.
struct RankReplica {
  int rank;
  dist::ReplicaRecord record;
};

/// Why a job ended, the most likely first cause of a failure first.
enum class Cause {
  killed,       ///< a rank was killed by a signal: what other ranks report may follow from that
  failed,       ///< a rank failed by itself
  interrupted,  ///< the launcher got a signal
  lost,         ///< the connection with another node's launcher ended
  consequence,  ///< a rank failed because it lost a peer
  stopped,      ///< a rank ended after it had been told to stop
  none,         ///< all ranks succeeded
};

struct JobResult {
  int exit_code = 0;
  std::string report{};  ///< lines for stderr, each ended by a newline; empty after success
  Cause cause = Cause::none;
  std::vector<RankReplica> replicas{};  ///< after success: those that the ranks left
  std::vector<int> missed{};  ///< the ranks that the report blames of having left or being gone
  std::vector<int> echoes{};  ///< ranks that have only failed as others had, or were stopped
  std::vector<int> left{};    ///< after success: ranks that have ended inside of their World
  bool parted = false;        ///< after success: other ranks have ended their World before
};

/// `outcomes[r]` belongs to the r-th rank of the plan's node. The reported failure is the most
/// likely first cause; of several, the one that ended first. The report names the node only if the
/// job has several. Nothing is reported for a rank whose record is empty, because it has reported
/// the failure itself. The exit code is that rank's, but 1 for a signal and for codes of 124 and
/// above (shells and `timeout` use those for themselves).
/// If all have succeeded but left replicas of a model that differ, it is 1.
JobResult result_of(std::span<const RankOutcome> outcomes, const JobPlan& plan = {});

/// The place, among the results of all nodes, of the result to report: the most likely first cause.
/// A node may miss a rank of another node that has only ended because that rank missed a third one:
/// the report that names the third rank says more.
std::size_t first_of(std::span<const JobResult> results);

/// The result of a job whose nodes have these results: success, with no replicas, unless they have
/// succeeded and left replicas of a model that differ, or some have left the World that others have
/// ended. (Where all end by `exit`, no rank is missed.)
JobResult compare_ends(std::span<const JobResult> results);

/// The result of a job that a signal to the launcher ended: exit code 128 + signal, as shells say
/// it (130 for Ctrl-C).
JobResult interrupted_by(int signal, const JobPlan& plan = {});

}  // namespace lockstep::launch
