#pragma once
/// Zeroes memory of the current device, and waits for that alone: on a stream of its own, since the
/// device's others may be waiting for ranks that wait for this one.

#include <cuda_runtime.h>

#include <cstddef>

#include "lockstep/core/cuda/check.h"
#include "lockstep/core/cuda/handle.h"

namespace lockstep::dist {

inline void zero_memory(void* data, std::size_t bytes) {
  cudaStream_t made{};
  cuda::call("allocate", "cudaStreamCreateWithFlags",
             cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
  const cuda::Handle<cudaStream_t, cudaStreamDestroy> stream(made);
  cuda::call("allocate", "cudaMemsetAsync", cudaMemsetAsync(data, 0, bytes, made));
  cuda::call("allocate", "cudaStreamSynchronize", cudaStreamSynchronize(made));
}

}  // namespace lockstep::dist
