#pragma once

// Ways for GPUs to reach each other.

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
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

/// The number of GPUs, counted in a child: a process that has asked CUDA cannot fork ranks any
/// more. In a process that has, the child finds none.
inline int gpus() {
  static const int counted = [] {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(std::min(gpu::count(), 255));
    int status = 0;
    (void)::waitpid(child, &status, 0);
    const int of_child = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    return of_child > 0 ? of_child : gpu::count();
  }();
  return counted;
}

/// With NCCL no two ranks share a GPU. GPUs are counted whatever the engine is, and so before the
/// first engine uses CUDA.
inline bool enough_gpus(int ranks, const GpuEngine& engine) {
  const int counted = gpus();
  return engine.transport == "ipc" || ranks <= counted;
}

}  // namespace lockstep::test
