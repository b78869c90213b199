#pragma once
/// What a launcher says when its ranks have ended: a pure function of how each of them ended.

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/launch/report.h"

namespace lockstep::dist {

/// How one rank ended.
struct RankOutcome {
  int order = 0;  ///< 0 for the rank that ended first
  int exit_code = 0;
  int signal = 0;        ///< the signal that killed it, 0 if none did
  bool stopped = false;  ///< it ended after the launcher had told the ranks to stop
  std::optional<FailureRecord> record{};  ///< what it said about its failure
  std::vector<std::string> last_lines{};  ///< of its stderr, as far as nobody has seen them

  bool failed() const { return exit_code != 0 || signal != 0; }
};

/// What a failure goes back to, the nearest to the cause first.
enum class Cause {
  killed,       ///< a rank, by a signal: what others say may follow from that
  failed,       ///< a rank, by itself
  interrupted,  ///< the launcher got a signal
  lost,         ///< the connection with another node's launcher
  echo,         ///< a rank, since a peer was lost
  stopped,      ///< a rank, after it had been told to stop
  none,         ///< all is well
};

struct JobResult {
  int exit_code = 0;
  std::string report{};  ///< lines for stderr, each ended by a newline; empty after success
  Cause cause = Cause::none;
};

/// Where a launcher's ranks are, for their names.
struct Place {
  int first_rank = 0;
  int node = -1;  ///< -1: there is one node only, and reports do not mention it
};

/// `outcomes[r]` belongs to the r-th rank of the place. The failure that is reported is the nearest
/// to the cause, and the first of several. Nothing is reported of a rank whose record is empty: it
/// has said why itself. The exit code is that rank's, 1 for a signal and for codes of 124 and above
/// (shells and `timeout` give those a meaning of their own).
JobResult judge(std::span<const RankOutcome> outcomes, const Place& place = {});

/// The result on a run that a signal to the launcher ended.
JobResult interrupted_by(int signal, const Place& place = {});

/// The result of a launcher that has lost another node's; `how` as in "its launcher is gone".
JobResult lost_node(int node, std::string_view how);

/// Of several nodes' results, by node, the one to report for all: the index of the nearest to the
/// cause. (Which of two failures came first cannot be told from the clocks of two machines.)
std::size_t first_cause(std::span<const JobResult> results);

}  // namespace lockstep::dist
