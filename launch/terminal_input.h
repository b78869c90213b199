#pragma once
/// What is typed at the launcher's terminal, for rank 0. A rank has its own process group, and the
/// kernel stops a group in the background that reads from a terminal. Therefore the launcher reads,
/// while it is in the foreground itself, and passes it on through a pipe. Where stdin is no
/// terminal, rank 0 has it directly.
///
/// Thread-safety: of the launcher's one thread.

#include <poll.h>

#include <string>
#include <vector>

#include "lockstep/dist/rendezvous/socket.h"

namespace lockstep::launch {

class TerminalInput {
 public:
  /// What rank 0 gets as stdin: the launcher's, or the end of a pipe if that is a terminal; empty
  /// if the launcher has none.
  dist::Descriptor open();

  void add_sources(std::vector<pollfd>& sources) const;
  void pass_on();  ///< does not block

 private:
  bool may_read() const;
  dist::Descriptor rank_;  // the pipe to it; empty: nothing is passed on
  std::string waiting_;    // has been read, and the pipe was full
};

}  // namespace lockstep::launch
