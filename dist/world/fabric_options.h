#pragma once
/// What a fabric's communicators are made with.

#include <memory>

#include "lockstep/core/gpu/gpu.h"
#include "lockstep/dist/collectives/fabric.h"
#include "lockstep/dist/gpu/device_communicator.h"

namespace lockstep::dist {

struct FabricOptions {
  CommunicatorOptions communicator;
  EngineKind engine = EngineKind::automatic;  ///< for tensors on GPUs
};

/// A new communicator: with an engine for GPUs in builds that drive them.
inline std::unique_ptr<Communicator> complete(std::unique_ptr<HostCommunicator> host,
                                              const FabricOptions& options) {
  if (!gpu::kind()) return host;
  return std::make_unique<DeviceCommunicator>(std::move(host), options.engine);
}

}  // namespace lockstep::dist
