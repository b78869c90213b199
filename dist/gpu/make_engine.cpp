// Which engine a world gets: its ranks' GPUs and machines decide, the same on every rank.

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "lockstep/core/cuda/check.h"
#include "lockstep/core/gpu/graph.h"
#include "lockstep/dist/collectives/object_collectives.h"
#include "lockstep/dist/gpu/device_engine.h"
#include "lockstep/dist/gpu/peer_memory.h"

namespace lockstep::dist {
namespace {

constexpr int most_reduced = 16;  // of kernels::tree_reduce on a GPU

/// The two ranks that share a GPU, or nothing. `places[r]`: "machine bus" of rank r's.
std::optional<std::array<int, 2>> sharers(const std::vector<std::string>& places) {
  for (std::size_t r = 0; r < places.size(); ++r)
    for (std::size_t q = 0; q < r; ++q)
      if (places[q] == places[r]) return std::array{static_cast<int>(q), static_cast<int>(r)};
  return {};
}

std::string place_of(Device device, const HostCommunicator& host) {
  std::array<char, 32> bus{};
  cuda::call("communicator", "cudaDeviceGetPCIBusId",
             cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), device.index));
  const NodeMap* const nodes = host.choice().nodes;
  return fmt::format("{} {}", nodes ? nodes->node_of[index(host.rank())] : 0, bus.data());
}

bool one_machine(const HostCommunicator& host) {
  const NodeMap* const nodes = host.choice().nodes;
  return !nodes || nodes->ranks.size() == 1;
}

// We do not ask the driver whether GPUs can reach each other's memory. All ranks try it at the same
// time, with a value for each peer, because a container or a PCIe switch may forbid what the driver
// reports. It fails on all ranks or on none.
std::unique_ptr<DeviceEngine> ipc_if_possible(Algorithm algorithm, Device device,
                                              HostCommunicator& host) {
  if (!one_machine(host) || host.size() > most_reduced) return nullptr;
  try {
    return ipc_engine(algorithm, device, host);
  } catch (const ReachError&) {
    return nullptr;
  }
}

}  // namespace

void check_not_recording(std::size_t bytes) {
  check<StateError>(
      !StepGraph::recording(),
      "[communicator] a step that is being recorded needs {} bytes of staging memory, "
      "more than any call before: run it once as it is, then record it",
      bytes);
}

std::unique_ptr<DeviceEngine> make_engine(EngineKind kind, Algorithm algorithm, Device device,
                                          HostCommunicator& host) {
  using enum EngineKind;
  if (kind == none) return nullptr;
  const auto shared = sharers(gather_text(host, place_of(device, host)));
  if (kind == automatic) {
    const bool nccl_serves =
        nccl_available() && !shared && host.size() > 1 &&
        (algorithm == Algorithm::automatic || algorithm == Algorithm::two_shot);
    if (!nccl_serves) return ipc_if_possible(algorithm, device, host);
    kind = algorithm == Algorithm::two_shot ? nccl_direct : nccl;
  }
  check<UsageError>((kind != ipc && kind != nccl_direct) || host.size() <= most_reduced,
                    "[communicator] {} reduces at most {} ranks, there are {}: take nccl",
                    name_of(kind), most_reduced, host.size());
  if (kind == ipc) {
    check<UsageError>(one_machine(host),
                      "[communicator] --transport ipc needs all ranks on one machine");
    return ipc_engine(algorithm, device, host);
  }
  // NCCL compares machine and bus, but believes a user who says that ranks are on different
  // machines.
  if (shared && !std::getenv("NCCL_HOSTID"))
    fail<UsageError>(
        "[nccl] ranks {} and {} share a GPU, and NCCL needs one for each rank: use --transport "
        "ipc. (For experiments only: a different NCCL_HOSTID for each process, with "
        "NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_MAX_CTAS=1.)",
        (*shared)[0], (*shared)[1]);
  return nccl_engine(kind, device, host);
}

}  // namespace lockstep::dist
