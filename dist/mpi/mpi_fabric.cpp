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
    for (const int member : members) in_job.push_back(meeting_.membership().in_job(member));
    return std::make_shared<MpiFabric>(group, meeting_.timeout(), std::move(in_job));
  }

  void abort(std::string_view reason) noexcept override { meeting_.abort(reason); }

 private:
  MPI_Comm comm_;
  std::vector<int> members_;
  MpiCommunicator meeting_;  // over comm_ itself
};

/// A communicator of all processes, once all ranks want one.
MPI_Comm everybody(Seconds timeout) {
  MpiProcess& process = MpiProcess::get();
  try {
    meet(process.everybody(), timeout, process.ranks_here());
  } catch (const CommError&) {
    process.failed();
    throw;
  }
  MPI_Comm copy = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(process.everybody(), &copy), "MPI_Comm_dup");
  return copy;
}

}  // namespace

bool mpi_available() { return true; }

std::shared_ptr<Fabric> mpi_fabric(Seconds timeout) {
  const std::optional<LaunchInfo> launch = read_environment();
  // Before MPI begins: where mpirun has started their launcher, all would be one rank of MPI's.
  check<UsageError>(!launch || launch->launcher != "lockstep-run" || launch->size == 1,
                    "[mpi] lockstep-run has started the world's {} ranks, not MPI: start them with "
                    "mpirun",
                    launch ? launch->size : 0);
  MpiProcess::get(timeout);
  check<StateError>(!mpi_finalized(), "[mpi] MPI_Finalize was called before World::join");
  auto fabric = std::make_shared<MpiFabric>(everybody(timeout), timeout);
  // Each rank that MPI has not started would be a world of 1 and train alone.
  if (launch)
    check<UsageError>(launch->size == fabric->size(),
                      "[mpi] the world of {} has {} ranks, MPI's has {}: start them with mpirun",
                      launch->launcher, launch->size, fabric->size());
  return fabric;
}

}  // namespace lockstep::dist
