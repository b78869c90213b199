// Facts of the machine's GPUs: what the CUDA runtime answers, and what the build was made for.
#include "lockstep/core/gpu/facts.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <array>

#include "lockstep/core/gpu/gpu.h"

namespace lockstep::gpu {
namespace {

/// CUDA's words for an error, which is thereby forgotten.
std::string words_of(cudaError_t error) {
  (void)cudaGetLastError();
  return fmt::format("{} ({})", cudaGetErrorString(error), cudaGetErrorName(error));
}

/// A version that a function of CUDA gives; 0 if it fails.
int version(cudaError_t (*function)(int*)) {
  int found = 0;
  if (function(&found) == cudaSuccess) return found;
  (void)cudaGetLastError();
  return 0;
}

std::optional<std::vector<std::pair<int, int>>> pairs_apart(int devices) {
  std::vector<std::pair<int, int>> apart;
  for (int one = 0; one < devices; ++one)
    for (int other = one + 1; other < devices; ++other) {
      int there = 0, back = 0;
      if (cudaDeviceCanAccessPeer(&there, one, other) != cudaSuccess ||
          cudaDeviceCanAccessPeer(&back, other, one) != cudaSuccess) {
        (void)cudaGetLastError();
        return {};
      }
      if (!there || !back) apart.emplace_back(one, other);
    }
  return apart;
}

}  // namespace

Facts facts() {
  Facts result;
  result.simulated = kind() == Device::Kind::sim;
  result.driver = version(&cudaDriverGetVersion);
  result.toolkit = version(&cudaRuntimeGetVersion);
  result.architectures = LOCKSTEP_ARCHITECTURES;
  result.oldest_capability = result.simulated ? 0 : LOCKSTEP_OLDEST_SM;
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    result.trouble = words_of(error);
    return result;
  }
  for (int index = 0; index < count; ++index) {
    cudaDeviceProp properties{};
    if (const cudaError_t error = cudaGetDeviceProperties(&properties, index);
        error != cudaSuccess) {
      result.trouble = fmt::format("GPU {}: {}", index, words_of(error));
      result.devices.clear();
      return result;
    }
    std::array<char, 32> bus{};
    if (cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), index) != cudaSuccess)
      bus[0] = '\0';
    result.devices.push_back(
        {properties.name, 10 * properties.major + properties.minor, bus.data()});
  }
  if (count == 0) result.trouble = "CUDA finds no GPU";
  result.apart = pairs_apart(count);
  return result;
}

std::optional<Memory> memory(int index) {
  int before = 0;
  std::size_t free = 0, total = 0;
  const bool known = cudaGetDevice(&before) == cudaSuccess && cudaSetDevice(index) == cudaSuccess &&
                     cudaMemGetInfo(&free, &total) == cudaSuccess;
  (void)cudaSetDevice(before);
  (void)cudaGetLastError();
  if (!known) return {};
  return Memory{free, total};
}

}  // namespace lockstep::gpu
