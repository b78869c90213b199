#pragma once
/// What CUDA C++ spells with inline PTX, or cannot spell so that every compiler reads it: the
/// simulator's half. The other half, with the same functions, is
/// kernels/cuda/native/device_intrinsics.h, which also describes what they do.

#include <cuda_runtime.h>

#include <cstdint>

#include "simt/async_copy.h"
#include "simt/cluster.h"
#include "simt/tensor_core.h"

namespace simt::detail {
void* dynamic_shared_memory();
}

/// The block's dynamic shared memory, aligned to 128 bytes. An exactly sized heap block here,
/// filled with NaN patterns before each block, so that AddressSanitizer sees both ends of it.
template <class T>
__device__ inline T* dynamic_shared() {
  return static_cast<T*>(simt::detail::dynamic_shared_memory());
}

inline std::uint32_t shared_address(const void* shared) {
  return simt::detail::shared_address(shared);
}
