#pragma once
/// What a program may want to know of the GPUs, without CUDA's headers. In builds without any, there
/// are none, and everything that needs one throws DeviceError.

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "lockstep/core/device.h"
#include "lockstep/core/storage.h"

namespace lockstep::gpu {

/// The kind of device that this build drives besides the cpu: sim or cuda, or none.
std::optional<Device::Kind> kind();

/// How many there are.
int count();

/// "NVIDIA H200, 132 multiprocessors, compute capability 9.0".
std::string describe(int index);

/// How often each kernel was launched in this process, by name; kernels not launched are left out.
std::map<std::string, std::uint64_t> kernel_launches();

/// Page-locked host memory, which the GPU reads and writes while the host goes on. Slow to get:
/// meant to be kept. In builds without a GPU, ordinary memory.
Storage allocate_pinned(std::size_t bytes);

}  // namespace lockstep::gpu
