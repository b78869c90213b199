#pragma once
/// No process survives its launcher, not even one that is killed with SIGKILL and so cannot clean
/// up. The kernel kills the ranks themselves (PR_SET_PDEATHSIG), but a rank may be a shell script
/// with children of its own. For those there is the guardian: a child process that only waits for
/// the end of a pipe.
///
///   launcher ---- lifeline (pipe) ----> guardian
///   ranks    -- their group's number -^
///
/// The kernel closes the launcher's end when the launcher dies, however it dies. Then the guardian
/// kills every process group that it was told of and removes the job's folder.

#include <sys/types.h>

#include <string>

#include "lockstep/dist/rendezvous/descriptor.h"

namespace lockstep::dist {

class Guardian {
 public:
  /// Forks the guardian. `folder` holds at most one file, `folder`/rendezvous.
  explicit Guardian(const std::string& folder);

  /// Dismisses it: whoever destroys this has ended all ranks before.
  ~Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  /// A rank writes its process group's number (pid_t) here before it becomes the program. Closed on
  /// exec.
  int lifeline() const { return lifeline_.get(); }

 private:
  Descriptor lifeline_;
  pid_t pid_ = -1;
};

/// Removes the rendezvous socket and the folder it lies in, if they are there. Async-signal-safe.
void remove_job_folder(const char* folder, const char* socket) noexcept;

}  // namespace lockstep::dist
