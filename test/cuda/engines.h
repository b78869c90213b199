#pragma once

// Ways for GPUs to reach each other.

#include <string>
#include <vector>

#include "lockstep/core/gpu/gpu.h"
#include "lockstep/dist/world/world.h"

namespace lockstep::test {

struct GpuEngine {
  std::string comm, transport;
  bool tree;  // adds in tree order
};

inline const std::vector<GpuEngine> gpu_engines{
    {"auto", "ipc", true}, {"ring", "ipc", false}, {"nccl", "", false}, {"nccl-direct", "", true}};

inline JoinOptions options_of(const GpuEngine& engine, double timeout) {
  return {.comm = engine.comm, .transport = engine.transport, .timeout = dist::Seconds(timeout)};
}

/// With NCCL each rank has a GPU of its own.
inline bool enough_gpus(int ranks, const GpuEngine& engine) {
  return engine.transport == "ipc" || ranks <= gpu::count();
}

}  // namespace lockstep::test
