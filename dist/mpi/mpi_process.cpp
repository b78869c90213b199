#include "lockstep/dist/mpi/mpi_process.h"

#include <array>
#include <memory>
#include <string>
#include <utility>

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

MpiProcess& MpiProcess::get(Seconds timeout) {
  static MpiProcess process(timeout);  // its destructor runs when the program exits
  return process;
}

MpiProcess::MpiProcess(Seconds timeout) {
  static bool begun = false;
  check<CommError>(!std::exchange(begun, true), "[mpi] MPI_Init has failed before");
  const auto initialized = std::make_shared<std::promise<int>>();
  std::future<int> level = initialized->get_future();
  thread_ = std::thread([this, initialized, end = end_.get_future()]() mutable {
    int provided = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);  // ends us if it fails
    initialized->set_value(provided);
    try {
      if (end.get()) finalize();
    } catch (const std::future_error&) {
      // Initialized too late: `this` is gone, and nobody will use MPI.
    }
  });
  if (level.wait_for(timeout) != std::future_status::ready) {
    thread_.detach();  // it goes with the process
    fail<CommError>("[mpi] timed out after {:g} s in MPI_Init, waiting for all ranks to join",
                    timeout.count());
  }
  check<UsageError>(level.get() >= MPI_THREAD_SERIALIZED,
                    "[mpi] this MPI can be called by the thread alone that initialized it");
  MPI_Comm here = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here),
            "MPI_Comm_split_type");
  ranks_here_ = ranks_of(here);
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &everybody_), "MPI_Comm_dup");
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
  end_.set_value(!failed_ && communicators_ == 0);
  thread_.join();
}

}  // namespace lockstep::dist
