// In builds for GPUs on machines without NCCL.
#include "lockstep/dist/gpu/nccl_engine.h"

namespace lockstep::dist {

bool nccl_available() { return false; }

std::unique_ptr<DeviceEngine> nccl_engine(EngineKind, Device, HostCommunicator&) {
  fail<UsageError>(
      "[nccl] this build has no NCCL: install libnccl-dev (or set NCCL_ROOT) and build "
      "again");
}

}  // namespace lockstep::dist
