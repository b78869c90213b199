#pragma once
/// Starting one rank: fork, a process group of its own, exec.

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "lockstep/dist/rendezvous/descriptor.h"

namespace lockstep::dist {

using Environment = std::vector<std::pair<std::string, std::string>>;

/// What a rank's process is given. Descriptors that are not named here and were opened with
/// O_CLOEXEC do not reach it.
struct RankSetup {
  const std::vector<std::string>& command;  ///< the program, searched in PATH, and its arguments
  Environment environment;  ///< on top of the launcher's own; replaces variables of the same name
  int lifeline = -1;        ///< the guardian's, see guardian.h
  int standard_input = -1;
  int standard_output = -1;    ///< -1: the launcher's
  int standard_error = -1;     ///< -1: the launcher's
  std::vector<int> inherited;  ///< stay open under their own numbers
  sigset_t signal_mask;        ///< the mask that the launcher itself was started with
};

/// Starts the rank and returns its process id, which is also its group's. The rank dies when the
/// calling thread ends. Throws Error `cannot start 'x': No such file or directory`.
pid_t start_rank(const RankSetup& setup);

}  // namespace lockstep::dist
