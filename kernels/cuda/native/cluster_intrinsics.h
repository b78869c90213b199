#pragma once
/// Clusters: blocks that run side by side and reach each other's shared memory (compute capability
/// 9.0 and later). This is the real thing, in inline PTX; builds with the simulator find a header
/// of the same name in simt/include, which does the same in plain C++. Section numbers are those of
/// NVIDIA's PTX ISA, version 9.0.
///
/// A kernel that is compiled for several GPUs may name these functions for older ones, too, and
/// must not call them there: they end the kernel with an error.

#include <cuda_runtime.h>
#include <device_intrinsics.h>

#include <cstdint>

namespace hopper {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/// This block's number within its cluster.
__device__ inline std::uint32_t cluster_rank() {
  std::uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

/// A barrier of all threads of all blocks of the cluster (9.7.13.3); it may be reached by a warp's
/// threads one after another, since `.aligned` is absent. What was written before it to shared
/// memory is then visible to all of them.
__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

/// What lies at the same place in the shared memory of block `rank` of the cluster (9.7.9.22, mapa;
/// 9.7.9.8, ld). That block must not have ended.
__device__ inline float4 read_in_block(const float4* shared, std::uint32_t rank) {
  float4 value;
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n"
      "}"
      : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
      : "r"(shared_address(shared)), "r"(rank)
      : "memory");
  return value;
}

__device__ inline float read_in_block(const float* shared, std::uint32_t rank) {
  float value;
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %1, %2;\n"
      "ld.shared::cluster.f32 %0, [there];\n"
      "}"
      : "=f"(value)
      : "r"(shared_address(shared)), "r"(rank)
      : "memory");
  return value;
}

#else

__device__ inline std::uint32_t cluster_rank() {
  __trap();
  return 0;
}
__device__ inline void cluster_sync() { __trap(); }
template <class T>
__device__ T read_in_block(const T*, std::uint32_t) {
  __trap();
  return {};
}

#endif

}  // namespace hopper
