#pragma once
/// Clusters of blocks: the simulator's half. The other half, with the same functions, is
/// kernels/cuda/native/cluster_intrinsics.h, which also describes what they do.

#include <cuda_runtime.h>
#include <device_intrinsics.h>

#include <cstdint>

#include "simt/cluster.h"

namespace hopper {

inline std::uint32_t cluster_rank() { return simt::detail::cluster_rank(); }
inline void cluster_sync() { simt::detail::cluster_barrier(); }

template <class T>
T read_in_block(const T* shared, std::uint32_t rank) {
  return *static_cast<const T*>(simt::detail::shared_in_block(shared, sizeof(T), rank));
}

}  // namespace hopper
