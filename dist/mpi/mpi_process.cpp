#include "lockstep/dist/mpi/mpi_process.h"

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "lockstep/core/system/signals_blocked.h"
#include "lockstep/dist/transport/backoff.h"

namespace lockstep::dist {

void check_mpi(int code, std::string_view function) {
  if (code == MPI_SUCCESS) [[likely]]
    return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  fail<CommError>("{} failed: {}", function, text.data());
}

bool is_done(MPI_Request& request) {
  int done = 0;
  check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
  return done != 0;
}

int ranks_of(MPI_Comm comm) {
  int size = 0;
  check_mpi(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  return size;
}

bool mpi_initialized() {
  int yes = 0;
  MPI_Initialized(&yes);
  return yes != 0;
}

bool mpi_finalized() {
  int yes = 0;
  MPI_Finalized(&yes);
  return yes != 0;
}

void meet(MPI_Comm comm, Seconds timeout, int ranks_here) {
  const Backoff backoff(ranks_here);
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Ibarrier(comm, &request), "MPI_Ibarrier");
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (unsigned round = 0; !is_done(request); backoff.relax(round++))
    check<CommError>(std::chrono::steady_clock::now() < deadline,
                     "[mpi] timed out after {:g} s, waiting for all ranks to join",
                     timeout.count());
}

MpiProcess& MpiProcess::get(Seconds timeout) {
  static MpiProcess process(timeout);  // its destructor runs when the program exits
  return process;
}

MpiProcess::MpiProcess(Seconds timeout) {
  check<UsageError>(
      !mpi_finalized(),
      "[mpi] MPI_Finalize was called before World::join: MPI begins once in a process");
  const bool programs_own = mpi_initialized();
  int level = MPI_THREAD_SINGLE, of_this_thread = 0;
  if (programs_own) {
    check_mpi(MPI_Query_thread(&level), "MPI_Query_thread");
    check_mpi(MPI_Is_thread_main(&of_this_thread), "MPI_Is_thread_main");
  } else {
    level = initialize(timeout);
  }
  check<UsageError>(
      level >= MPI_THREAD_SERIALIZED || of_this_thread,
      "[mpi] this MPI can be called by the thread alone that initialized it{}",
      programs_own ? ": call World::join there, or MPI_Init_thread(..., MPI_THREAD_SERIALIZED, ...)"
                   : "");
  // After the program's MPI_Init the other ranks come when they like. Some may have left MPI_Init
  // to us.
  meet(MPI_COMM_WORLD, timeout, 1);
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &everybody_), "MPI_Comm_dup");
  check_mpi(MPI_Comm_set_errhandler(everybody_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  MPI_Comm here = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(everybody_, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here),
            "MPI_Comm_split_type");
  ranks_here_ = ranks_of(here);
}

// The level of thread support.
int MpiProcess::initialize(Seconds timeout) {
  static bool begun = false;
  check<CommError>(!std::exchange(begun, true), "[mpi] MPI_Init has failed before");
  const auto initialized = std::make_shared<std::promise<int>>();
  std::future<int> level = initialized->get_future();
  const SignalsBlocked for_the_thread;
  thread_ = std::thread([this, initialized, end = end_.get_future()]() mutable {
    int provided = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);  // ends us if it fails
    initialized->set_value(provided);
    try {
      if (end.get()) finalize();
    } catch (const std::future_error&) {
      // Initialized too late: `this` is gone, and no code will use MPI.
    }
  });
  if (level.wait_for(timeout) != std::future_status::ready) {
    thread_.detach();  // it goes with the process
    fail<CommError>("[mpi] timed out after {:g} s in MPI_Init, waiting for all ranks to join",
                    timeout.count());
  }
  return level.get();
}

// Waits until all ranks have come to their end: if one is in MPI_Finalize while another fails,
// mpirun (Open MPI 4.1.4) sometimes hangs or crashes instead of ending the job.
void MpiProcess::finalize() const {
  const Backoff backoff(ranks_here_);
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Ibarrier(everybody_, &request);
  for (unsigned round = 0; !is_done(request);) backoff.relax(round++);
  MPI_Finalize();
}

MpiProcess::~MpiProcess() {
  if (!thread_.joinable()) return;  // MPI is the program's
  end_.set_value(!failed_ && communicators_ == 0 && !mpi_finalized());
  thread_.join();
}

}  // namespace lockstep::dist
