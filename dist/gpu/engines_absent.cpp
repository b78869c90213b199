// In builds without GPUs.
#include "lockstep/dist/gpu/device_engine.h"

namespace lockstep::dist {

std::unique_ptr<DeviceEngine> make_engine(EngineKind kind, Algorithm, Device, HostCommunicator&) {
  if (kind == EngineKind::automatic || kind == EngineKind::none) return nullptr;
  fail<UsageError>("[communicator] {} moves tensors between GPUs, and this build drives none",
                   name_of(kind));
}

}  // namespace lockstep::dist
