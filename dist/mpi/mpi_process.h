#pragma once
/// MPI as a thing that a process initializes once and finalizes at its end.

#include <mpi.h>

#include <future>
#include <string_view>
#include <thread>

#include "lockstep/dist/transport/transport.h"

namespace lockstep::dist {

/// MPI_Init waits for all processes to call it, and knows no timeout. Therefore a thread of its own
/// calls it, which also calls MPI_Finalize in the end: MPI wants that to be the same thread.
///
/// Thread-safety: as mpi.h.
class MpiProcess {
 public:
  /// Initializes MPI the first time. Throws CommError if that takes longer than `timeout`.
  static MpiProcess& get(Seconds timeout = Seconds(60));

  MpiProcess(const MpiProcess&) = delete;
  MpiProcess& operator=(const MpiProcess&) = delete;

  int ranks_here() const { return ranks_here_; }  ///< on this machine

  /// Communicators count themselves, and tell when they fail: then the end is not MPI_Finalize's.
  void communicator_made() { ++communicators_; }
  void communicator_gone() { --communicators_; }
  void failed() { failed_ = true; }

 private:
  explicit MpiProcess(Seconds timeout);
  ~MpiProcess();
  void finalize() const;

  std::thread thread_;
  std::promise<bool> end_;  // tells the thread to end, and whether to finalize
  MPI_Comm everybody_ = MPI_COMM_NULL;
  int ranks_here_ = 1;
  int communicators_ = 0;
  bool failed_ = false;
};

/// Throws CommError with MPI's own words unless `code` is MPI_SUCCESS.
void check_mpi(int code, std::string_view function);

}  // namespace lockstep::dist
