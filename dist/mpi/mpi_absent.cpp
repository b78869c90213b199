// Linked in place of the communicator over MPI in builds without it.

#include "lockstep/dist/mpi/mpi.h"

namespace lockstep::dist {

bool mpi_available() { return false; }

std::shared_ptr<Fabric> mpi_fabric(Seconds, std::size_t) {
  fail<UsageError>(
      "[mpi] this build has no MPI: install libopenmpi-dev and openmpi-bin and build again");
}

}  // namespace lockstep::dist
