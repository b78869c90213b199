#include <mpi.h>

#include <optional>

#include "lockstep/dist/mpi/mpi.h"
#include "lockstep/dist/mpi/mpi_communicator.h"
#include "lockstep/dist/mpi/mpi_process.h"
#include "lockstep/dist/rendezvous/environment.h"

namespace lockstep::dist {
namespace {

/// MPI makes and splits communicators in blocking calls without a timeout. Therefore the ranks
/// first meet in a barrier of ours, which has a timeout and names a rank that is missing or calls
/// something else.
class MpiFabric final : public Fabric {
 public:
  /// `members`: of a group, its ranks in the job.
  MpiFabric(MPI_Comm comm, Seconds timeout, std::vector<int> members = {})
      : comm_(comm), members_(std::move(members)), meeting_(comm, timeout, members_) {}

  int rank() const override { return meeting_.rank(); }
  int size() const override { return meeting_.size(); }
  std::string_view transport() const override { return "mpi"; }

  std::unique_ptr<Communicator> connect() override {
    meeting_.barrier("connect").wait();
    MPI_Comm copy = MPI_COMM_NULL;
    check_mpi(MPI_Comm_dup(comm_, &copy), "MPI_Comm_dup");
    return std::make_unique<MpiCommunicator>(copy, meeting_.timeout(), members_);
  }

  std::shared_ptr<Fabric> split(const std::vector<int>& members) override {
    meeting_.barrier("split").wait();
    MPI_Comm group = MPI_COMM_NULL;
    const int color = members.empty() ? MPI_UNDEFINED : members.front();
    check_mpi(MPI_Comm_split(comm_, color, rank(), &group), "MPI_Comm_split");
    if (members.empty()) return nullptr;
    std::vector<int> in_job;  // MPI keeps their order
    for (const int member : members) in_job.push_back(meeting_.rank_in_job(member));
    return std::make_shared<MpiFabric>(group, meeting_.timeout(), std::move(in_job));
  }

  void abort(std::string_view reason) noexcept override { meeting_.abort(reason); }

 private:
  MPI_Comm comm_;
  std::vector<int> members_;
  MpiCommunicator meeting_;  // over comm_ itself
};

/// A copy of MPI_COMM_WORLD, once all ranks want one.
MPI_Comm everybody(Seconds timeout) {
  const Backoff backoff(MpiProcess::get().ranks_here());
  check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Ibarrier(MPI_COMM_WORLD, &request), "MPI_Ibarrier");
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (unsigned round = 0; !is_done(request); backoff.relax(round++)) {
    if (std::chrono::steady_clock::now() < deadline) continue;
    MpiProcess::get().failed();
    fail<CommError>("[mpi] timed out after {:g} s, waiting for all ranks to join", timeout.count());
  }
  MPI_Comm copy = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &copy), "MPI_Comm_dup");
  return copy;
}

}  // namespace

bool mpi_available() { return true; }

std::shared_ptr<Fabric> mpi_fabric(Seconds timeout) {
  MpiProcess::get(timeout);
  auto fabric = std::make_shared<MpiFabric>(everybody(timeout), timeout);
  // Each rank that MPI has not started would be a world of 1 and train alone.
  if (const std::optional<LaunchInfo> launch = read_environment())
    check<UsageError>(launch->size == fabric->size(),
                      "[mpi] the world of {} has {} ranks, MPI's has {}: start them with mpirun",
                      launch->launcher, launch->size, fabric->size());
  return fabric;
}

}  // namespace lockstep::dist
