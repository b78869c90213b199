// What this build has no library for: dist/CMakeLists.txt says which of these it lacks.

#include "lockstep/dist/gpu/device_engine.h"
#include "lockstep/dist/mpi/mpi.h"

namespace lockstep::dist {

#ifdef LOCKSTEP_NO_MPI
bool mpi_available() { return false; }

std::shared_ptr<Fabric> mpi_fabric(Seconds) {
  fail<UsageError>(
      "[mpi] this build has no MPI: install libopenmpi-dev and openmpi-bin and build again");
}
#endif

#ifdef LOCKSTEP_NO_NCCL
bool nccl_available() { return false; }

std::unique_ptr<DeviceEngine> nccl_engine(EngineKind, Device, HostCommunicator&) {
  fail<UsageError>(
      "[nccl] this build has no NCCL: install libnccl-dev (or set NCCL_ROOT) and build again");
}
#endif

#ifdef LOCKSTEP_NO_GPU
std::unique_ptr<DeviceEngine> make_engine(EngineKind kind, Algorithm, Device, HostCommunicator&) {
  if (kind == EngineKind::automatic || kind == EngineKind::none) return nullptr;
  fail<UsageError>("[communicator] {} moves tensors between GPUs, and this build drives none",
                   name_of(kind));
}
#endif

}  // namespace lockstep::dist
