#pragma once
/// MPI in this process. The program finalizes MPI if it has called MPI_Init before; else we
/// initialize it, and finalize it when the process ends.

#include <mpi.h>

#include <future>
#include <string_view>
#include <thread>

#include "lockstep/dist/transport/transport.h"

namespace lockstep::dist {

/// MPI_Init waits for all processes to call it, and has no timeout. Therefore a separate thread
/// calls it. The same thread calls MPI_Finalize in the end, which MPI requires, unless the program
/// has called it. No call of MPI follows after MPI_Finalize.
///
/// Thread-safety: as mpi.h.
class MpiProcess {
 public:
  /// Initializes MPI the first time, unless the program has. Throws CommError if it takes longer
  /// than `timeout` until all ranks have come; UsageError if the program has finalized MPI, or has
  /// initialized it for another thread than this one.
  static MpiProcess& get(Seconds timeout = Seconds(60));

  MpiProcess(const MpiProcess&) = delete;
  MpiProcess& operator=(const MpiProcess&) = delete;

  int ranks_here() const { return ranks_here_; }     ///< on this machine
  MPI_Comm everybody() const { return everybody_; }  ///< a copy of MPI_COMM_WORLD

  /// Communicators report when they begin, end and fail; see mpi.h for the end.
  void communicator_made() { ++communicators_; }
  void communicator_gone() { --communicators_; }
  void failed() { failed_ = true; }

 private:
  explicit MpiProcess(Seconds timeout);
  ~MpiProcess();
  int initialize(Seconds timeout);
  void finalize() const;

  std::thread thread_;      // of ours, if we have initialized MPI
  std::promise<bool> end_;  // tells the thread to end, and whether to finalize
  MPI_Comm everybody_ = MPI_COMM_NULL;
  int ranks_here_ = 1;
  int communicators_ = 0;
  bool failed_ = false;
};

bool mpi_initialized();
bool mpi_finalized();

/// Returns once all ranks of `comm` have called it. Throws CommError after `timeout`.
void meet(MPI_Comm comm, Seconds timeout, int ranks_here);

/// Throws CommError with MPI's own message unless `code` is MPI_SUCCESS.
void check_mpi(int code, std::string_view function);

bool is_done(MPI_Request& request);
int ranks_of(MPI_Comm comm);

}  // namespace lockstep::dist
