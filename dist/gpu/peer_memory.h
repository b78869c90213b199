#pragma once
/// Memory of a GPU that all ranks of a machine address: their own pointers within one process, CUDA
/// IPC between processes.

#include <cstddef>
#include <memory>
#include <vector>

#include "lockstep/dist/collectives/host_communicator.h"

namespace lockstep::dist {

/// The memory of every rank, as this one addresses it. With the last copy, peers' memory is unmapped
/// and own memory freed (among threads: with the last copy of all). Between processes CUDA wants
/// memory unmapped before it is freed, so ranks end what they share at about the same time.
struct PeerMemory {
  std::size_t bytes = 0;
  std::vector<std::byte*> base;
  std::shared_ptr<void> keeper;
};

/// A GPU does not reach the memory of another rank's.
struct ReachError : DeviceError {
  using DeviceError::DeviceError;
};

/// `bytes` zeroed bytes on every rank's device. Collective, and blocks. Where one rank fails, all
/// throw, and name the first that does: DeviceError if it has no memory, else ReachError.
PeerMemory share_device_memory(std::size_t bytes, Device device, HostCommunicator& host);

/// Zeroes memory of the current device, and waits for that alone: on a stream of its own, because
/// the device's other streams may wait for ranks that wait for this one.
void zero_memory(void* data, std::size_t bytes);

}  // namespace lockstep::dist
