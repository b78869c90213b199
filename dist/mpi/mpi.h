#pragma once
/// MPI as a means to connect ranks: `mpirun -n 4 ./train ... --comm mpi`. MPI starts the processes,
/// lets them meet, and carries out the collectives, with algorithms of its own. In a build without
/// MPI (LOCKSTEP_MPI=OFF, or none was found) these functions say that it is missing.
///
/// Thread-safety: everything that belongs to MPI is used by one thread at a time, in the whole
/// process (MPI_THREAD_SERIALIZED).
///
/// The end: MPI_Finalize is called when the program exits, and waits for the other ranks. It is not
/// called if a communicator has failed or still exists, because it could then wait for ever; mpirun
/// ends the other ranks as soon as one has exited without it.

#include <cstddef>
#include <memory>

#include "lockstep/dist/collectives/fabric.h"

namespace lockstep::dist {

/// A collective is cut into pieces of so many bytes, of which several are under way at once. MPI
/// counts elements in an int; and Open MPI 4.1 carries out a large non-blocking all-reduce in few
/// large rounds, in which it adds nothing while data travel. Pieces overlap the two. Measured
/// with 2 and 4 ranks on 2 cores, 8 MiB: 3.5 and 7.3 ms as a whole, 2.0 and 5.7 ms in pieces of 256
/// KiB, 2.3 and 5.7 ms by the blocking MPI_Allreduce. Between 256 KiB and 1 MiB pieces hardly
/// differ.
inline constexpr std::size_t mpi_piece_bytes = 512 * 1024;

bool mpi_available();

/// All processes that MPI started together; started alone, a world of 1. Collective; it blocks
/// until all have called. `timeout` limits that, and every wait in which nothing moves. Throws
/// CommError if the ranks have not come by then; UsageError in a build without MPI, or if another
/// launcher has started the ranks.
std::shared_ptr<Fabric> mpi_fabric(Seconds timeout, std::size_t piece_bytes = mpi_piece_bytes);

}  // namespace lockstep::dist
