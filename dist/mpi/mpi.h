#pragma once
/// MPI as a means to connect ranks: `mpirun -n 4 ./train ... --comm mpi`. MPI starts the processes,
/// lets them meet, and carries out the collectives, with its own algorithms. In a build without MPI
/// (LOCKSTEP_MPI=OFF, or none was found) these functions say that it is missing.
///
/// Thread-safety: everything that belongs to MPI is used by one thread at a time, in the whole
/// process (MPI_THREAD_SERIALIZED).
///
/// A program that uses MPI itself calls MPI_Init before World::join, and MPI_Finalize after the end
/// of its World. Below MPI_THREAD_SERIALIZED one thread calls MPI_Init, World::join and all
/// collectives. MPI_COMM_WORLD's error handler stays the program's.
///
/// The end: if the program has called neither, MPI_Finalize is called when the program exits, and
/// waits for the other ranks. It is not called if a communicator has failed or still exists,
/// because it could then wait for ever; mpirun ends the other ranks as soon as one has exited
/// without it. After a MPI_Finalize of the program's a World can only end: a collective throws
/// StateError.

#include <memory>

#include "lockstep/dist/collectives/fabric.h"

namespace lockstep::dist {

bool mpi_available();

/// All processes that MPI started together; started alone, a world of 1. Collective; it blocks
/// until all have called. `timeout` limits that, and every wait in which nothing moves. Throws
/// CommError if the ranks have not come by then; UsageError in a build without MPI, if another
/// launcher has started the ranks, or after MPI_Finalize.
std::shared_ptr<Fabric> mpi_fabric(Seconds timeout);

}  // namespace lockstep::dist
