#pragma once
/// What a launcher says when its ranks have ended: a pure function of how each of them ended.

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/dist/report.h"

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

struct Verdict {
  int exit_code = 0;
  std::string report;  ///< lines for stderr, each ended by a newline; empty after success
};

/// `outcomes[r]` belongs to rank r. The failure that is reported is the cause, among the ranks that
/// the launcher had not stopped: the first one killed by a signal (what others say may follow from
/// that), else the first that is not an echo of a lost peer, else the first echo. Nothing is
/// reported of a rank whose record is empty: it has said why itself. The exit code is that rank's,
/// 1 for a signal and for codes of 124 and above (shells and `timeout` give those a meaning of
/// their own).
Verdict judge(std::span<const RankOutcome> outcomes);

/// The verdict on a run that a signal to the launcher ended.
Verdict interrupted_by(int signal);

}  // namespace lockstep::dist
