#pragma once
/// Every call of the CUDA runtime is checked, through `call`.

#include <cuda_runtime.h>

#include <string_view>

#include "lockstep/core/error.h"

namespace lockstep::cuda {

/// Throws DeviceError naming the operation, the call that failed and CUDA's own words:
/// "[allocate] cudaMallocAsync: out of memory (cudaErrorMemoryAllocation)". An error that an
/// earlier, asynchronous kernel left behind is met by some later call: then the kernels that were
/// launched since the last wait are named too.
[[noreturn]] void failed(std::string_view operation, std::string_view function, cudaError_t error);

/// call("allocate", "cudaMallocAsync", cudaMallocAsync(&data, bytes, stream));
inline void call(std::string_view operation, std::string_view function, cudaError_t error) {
  if (error != cudaSuccess) failed(operation, function, error);
}

}  // namespace lockstep::cuda
