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

/// What cudaEventQuery and cudaStreamQuery answer. That something is not done yet is no error, but
/// CUDA keeps it as the last one (cudaGetLastError): it is taken out.
inline cudaError_t answered(cudaError_t answer) {
  if (answer == cudaErrorNotReady) (void)cudaGetLastError();
  return answer;
}
inline cudaError_t query(cudaEvent_t event) { return answered(cudaEventQuery(event)); }
inline cudaError_t query(cudaStream_t stream) { return answered(cudaStreamQuery(stream)); }

}  // namespace lockstep::cuda
