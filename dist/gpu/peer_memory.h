#pragma once
/// Memory of a GPU that all ranks of a machine address: their own pointers within one process, CUDA
/// IPC between processes.

#include <cstddef>

#include "lockstep/dist/collectives/host_communicator.h"

namespace lockstep::dist {

/// A GPU does not reach the memory of another rank's GPU.
struct ReachError : DeviceError {
  using DeviceError::DeviceError;
};

/// `bytes` zeroed bytes on every rank's device. With the last copy of the region the peers' memory
/// is unmapped (among threads: with the last copy of all). The own memory is freed in a world of
/// one; else it is kept for a later region of this process: one of at most its size, and more than
/// half of it.
///
/// Collective; blocks. If it fails on one rank, it throws on all and names the first rank that
/// fails: DeviceError if that has no memory, else ReachError; so, too, where ranks are threads that
/// share a GPU, and kernels are loaded when they are first launched.
SharedRegion share_device_memory(std::size_t bytes, Device device, HostCommunicator& host);

/// Whether what each rank writes into a region of its peers arrives there, and what it reads is
/// theirs: memory that can be mapped need not be reached (PCIe's access control, IOMMU). The region
/// has room for a 32-bit value of each rank, and is zero before and after.
///
/// Collective; blocks. Throws ReachError on all ranks if it does not.
void check_reach(const SharedRegion& region, Device device, HostCommunicator& host);

/// Zeroes memory of the device, and waits for that alone: on this thread's reading stream, because
/// its computing stream may wait for ranks that wait for this one. (A further stream would need a
/// hardware queue: core/cuda/stream_pool.h.)
void zero_memory(void* data, std::size_t bytes, Device device);

}  // namespace lockstep::dist
