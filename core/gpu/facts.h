#pragma once
/// What the backend knows of the machine's GPUs, for code that looks for faults
/// (dist/doctor/gpu.h). Nothing here throws: a fact that cannot be had is left unknown.
///
/// Thread-safety: any thread may call these functions.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::gpu {

struct DeviceFacts {
  std::string name;      ///< "NVIDIA H200"
  int capability = 0;    ///< compute capability, 10 * major + minor: 90
  std::string bus = {};  ///< its place in this machine, "0000:1b:00.0"; empty: unknown
};

struct Facts {
  bool simulated = false;  ///< the devices are the simulator's
  /// Why no GPU can be used, in CUDA's words: "no CUDA-capable device is detected
  /// (cudaErrorNoDevice)". Empty if there are devices.
  std::string trouble;
  int driver = 0;   ///< the newest CUDA that the driver serves, 1000 * major + 10 * minor; 0: none
  int toolkit = 0;  ///< the CUDA toolkit of this build, likewise; 0: none
  /// What the kernels were compiled for, as CMAKE_CUDA_ARCHITECTURES says it: "80 90a". Empty: for
  /// every device.
  std::string architectures;
  int oldest_capability = 0;  ///< below it the kernels cannot be compiled; 0: any will do
  std::vector<DeviceFacts> devices;
  /// The pairs of devices, the lower index first, that cannot address each other's memory. Nothing:
  /// not known.
  std::optional<std::vector<std::pair<int, int>>> apart;
};

/// Makes no context on any GPU: other processes are not disturbed.
Facts facts();

/// Of a device, in bytes.
struct Memory {
  std::uint64_t free = 0;   ///< for all processes, as the driver says now
  std::uint64_t total = 0;  ///< of which some belongs to the driver
};

/// Of the device `index`, which this process then uses: CUDA makes a context there. Nothing: not
/// known, or there is no such device.
std::optional<Memory> memory(int index);

}  // namespace lockstep::gpu
