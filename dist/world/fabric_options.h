#pragma once
/// What a fabric's communicators are made with.

#include <memory>

#include "lockstep/core/gpu/gpu.h"
#include "lockstep/dist/collectives/fabric.h"
#include "lockstep/dist/gpu/device_communicator.h"

namespace lockstep::dist {

struct FabricOptions {
  CommunicatorOptions communicator;
  bool tune = false;  ///< communicators measure what they cost before they choose algorithms
  EngineKind engine = EngineKind::automatic;  ///< for tensors on GPUs
};

/// A new communicator: tuned, if that is asked for, and with an engine for GPUs in builds that drive
/// them. Collective.
inline std::unique_ptr<Communicator> complete(std::unique_ptr<HostCommunicator> host,
                                              const FabricOptions& options) {
  if (options.tune) host->tune();
  if (!gpu::kind()) return host;
  return std::make_unique<DeviceCommunicator>(std::move(host), options.engine);
}

}  // namespace lockstep::dist
