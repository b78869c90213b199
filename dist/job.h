#pragma once
/// What the ranks of one job share before they meet: a name, a secret and a place for the
/// rendezvous.

#include <string>

#include "lockstep/dist/descriptor.h"
#include "lockstep/dist/rank_process.h"

namespace lockstep::dist {

class Job {
 public:
  /// Makes a folder of mode 0700 (in $TMPDIR or /tmp), a secret of 32 random bytes, which lies in
  /// nameless memory and never in a file or an argument list, and finds a free port.
  Job();
  ~Job();  ///< removes the folder
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  const std::string& folder() const { return folder_; }
  int token() const { return token_.get(); }

  /// The variables of rank `rank` of `ranks`; see launch.h. `errors` is its LOCKSTEP_ERROR_FD.
  Environment environment(int rank, int ranks, int errors) const;

 private:
  std::string socket() const { return folder_ + "/store"; }
  Descriptor token_;
  int port_;
  std::string name_;
  std::string folder_;
};

}  // namespace lockstep::dist
