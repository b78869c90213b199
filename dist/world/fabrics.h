#pragma once
/// How the fabrics of collectives/fabric.h are made, except MPI's (mpi/mpi.h). A fabric owns what
/// it needs; a communicator and a group may outlive the fabric that made them.

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/dist/collectives/fabric.h"
#include "lockstep/dist/collectives/host_communicator.h"
#include "lockstep/dist/gpu/device_engine.h"
#include "lockstep/dist/rendezvous/environment.h"
#include "lockstep/dist/transport/transports.h"

namespace lockstep::dist {

/// What a fabric's communicators are made with.
struct FabricOptions {
  CommunicatorOptions communicator;
  EngineKind engine = EngineKind::automatic;  ///< for tensors on GPUs
};

/// The communicator of a rank over `transport`, with an engine for GPUs in builds that drive them.
/// Collective.
std::unique_ptr<Communicator> make_communicator(std::unique_ptr<Transport> transport,
                                                const FabricOptions& options);

/// The members of a group in the numbers of the job, from those in its parent's;
/// `of_parent`: CommunicatorOptions::members of the parent.
std::vector<int> members_in_job(std::vector<int> members, const std::vector<int>& of_parent);

/// Between ranks that are threads of one process: one fabric per rank, to be moved into that rank's
/// thread. Throws UsageError for a size below 1. May be called by any thread.
std::vector<std::shared_ptr<Fabric>> threads_fabrics(int size, const FabricOptions& options);

/// One line on stderr: these ranks run on, although the others have failed, `patience` ago. A
/// thread that loops sees no error, and no other thread can end it.
void tell_who_runs_on(const std::vector<int>& ranks, Seconds patience,
                      const std::exception_ptr& failure);

/// Between processes, which meet in a rendezvous. `transport` is shm or tcp, or empty:
///
///   one machine         shm
///   several machines    shm+tcp if some machine has several ranks, else tcp
///
/// A group is a separate world with a separate rendezvous: its first rank listens, the others join
/// it there. Blocks until all ranks that the launcher started have come. Errors as join_rendezvous;
/// UsageError for a transport that cannot be. Where the launcher does not say which ranks share a
/// machine, it fills in launch.local_rank and local_size.
std::shared_ptr<Fabric> process_fabric(LaunchInfo& launch, const std::string& transport,
                                       const FabricOptions& options);

}  // namespace lockstep::dist
