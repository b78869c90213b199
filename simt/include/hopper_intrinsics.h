#pragma once
/// Instructions of Hopper GPUs: the simulator's half. The other half, with the same functions, is
/// kernels/cuda/native/hopper_intrinsics.h, which also describes what they do.

#include <cluster_intrinsics.h>
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <device_intrinsics.h>

#include <cstdint>
#include <type_traits>

#include "simt/cluster.h"
#include "simt/copy_engine.h"
#include "simt/registers.h"
#include "simt/warpgroup.h"

namespace hopper {

// ---- mbarrier ----------------------------------------------------------------------------------

struct alignas(8) Barrier {
  std::uint64_t opaque;
};

inline void init(Barrier& barrier, int arrivals) {
  simt::detail::mbarrier_init(&barrier, static_cast<std::uint32_t>(arrivals));
}

inline void fence_init() { simt::detail::mbarrier_fence_init(); }

inline void arrive_expecting(Barrier& barrier, std::uint32_t bytes) {
  simt::detail::mbarrier_arrive(cluster_rank(), &barrier, bytes);
}

inline void arrive_in_block(Barrier& barrier, std::uint32_t rank) {
  simt::detail::mbarrier_arrive(rank, &barrier, 0);
}

inline void wait(Barrier& barrier, std::uint32_t parity) {
  simt::detail::mbarrier_wait(&barrier, parity);
}

// ---- the copy engine ---------------------------------------------------------------------------

inline void load_panel(void* panel, const CUtensorMap& map, int inner, int outer,
                       Barrier& barrier) {
  simt::detail::copy_box(1u << cluster_rank(), panel, map, inner, outer, &barrier);
}

inline void load_panel_to(std::uint16_t blocks, void* panel, const CUtensorMap& map, int inner,
                          int outer, Barrier& barrier) {
  simt::detail::copy_box(blocks, panel, map, inner, outer, &barrier);
}

// ---- registers ---------------------------------------------------------------------------------

template <int count>
void give_registers() {
  static_assert(count % 8 == 0 && 24 <= count && count <= 256);
  simt::detail::Registers::mine().give(count);
}

template <int count>
void take_registers() {
  static_assert(count % 8 == 0 && 24 <= count && count <= 256);
  simt::detail::Registers::mine().take(count);
}

// ---- wgmma -------------------------------------------------------------------------------------

template <int columns>
using Accumulators = float[columns / 8][4];

inline void fence_products() { simt::detail::fence_products(); }
template <int groups>
void pin(float (&)[groups][4]) {}

inline void commit_products() { simt::detail::commit_products(); }

template <int newest>
void wait_products() {
  simt::detail::wait_products(newest);
}

template <class T, bool a_mn_major, bool b_mn_major, int groups>
void issue_product(float (&sum)[groups][4], std::uint64_t a, std::uint64_t b) {
  static_assert(groups == 8 || groups == 16 || groups == 32, "those that the native header has");
  static_assert(!std::is_same_v<T, float> || (!a_mn_major && !b_mn_major), "tf32: along k only");
  simt::detail::issue_product({sum, 8 * groups}, a, b,
                              simt::detail::read_operands<T, a_mn_major, b_mn_major>);
}

}  // namespace hopper
