#pragma once
/// What a Hopper GPU (sm_90a) has and CUDA C++ cannot say: the bulk tensor copy engine (TMA), the
/// barriers that count its bytes (mbarrier), matrix products issued by 128 threads at once (wgmma),
/// and registers that move between warps. Clusters: cluster_intrinsics.h. One small function each.
/// This is the real thing, in inline PTX; builds with the simulator find a header of the same name
/// in simt/include, which does the same in plain C++. Section numbers are those of NVIDIA's PTX
/// ISA, version 9.0. What the panels of the copies and products are:
/// kernels/cuda/gemm/hopper/panels.cuh.

#include <cluster_intrinsics.h>
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <device_intrinsics.h>

#include <cstdint>

namespace hopper {

// ---- mbarrier (9.7.13.15) ----------------------------------------------------------------------
//
// A barrier is in phase 0, 1, 2, ... A phase is complete when the expected number of arrivals has
// come AND as many bytes have been copied as were announced. Waiting names a phase by its parity,
// and is for the current phase (not complete: it waits) or the one before (complete: it returns).
// So on a new barrier, waiting for parity 1 returns at once.

struct alignas(8) Barrier {
  std::uint64_t opaque;
};

__device__ inline void init(Barrier& barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)),
               "r"(arrivals)
               : "memory");
}

/// Makes initialized barriers visible to the cluster and the copy engine; a cluster_sync follows.
__device__ inline void fence_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// One arrival that also announces `bytes` of copies. Bytes may have come before: the barrier's
/// count of bytes may be negative meanwhile (9.7.13.15.2), and the phase waits for this arrival.
__device__ inline void arrive_expecting(Barrier& barrier, std::uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)),
      "r"(bytes)
      : "memory");
}

/// One arrival at the barrier that lies at the same place in block `rank` of the cluster.
__device__ inline void arrive_in_block(Barrier& barrier, std::uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
      "}" ::"r"(shared_address(&barrier)),
      "r"(rank)
      : "memory");
}

/// Returns once the phase of this parity is complete. What the copy engine wrote in that phase is
/// then visible (9.7.9.25.2: its completion implies the fence between the proxies).
__device__ inline void wait(Barrier& barrier, std::uint32_t parity) {
  const std::uint32_t address = shared_address(&barrier);
  std::uint32_t complete;
  do {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}"
        : "=r"(complete)
        : "r"(address), "r"(parity)
        : "memory");
  } while (complete == 0);
}

// ---- the copy engine (9.7.9.25.5.2) ------------------------------------------------------------

/// Starts the copy of one panel, whose first element is at (inner, outer) of the matrix that `map`
/// describes, to `panel`, and has its 8192 bytes counted by `barrier`. What lies outside of the
/// matrix arrives as zeros, and counts.
__device__ inline void load_panel(void* panel, const CUtensorMap& map, int inner, int outer,
                                  Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(panel)),
      "l"(&map), "r"(inner), "r"(outer), "r"(shared_address(&barrier))
      : "memory");
}

/// The same, to the same place in every block of the cluster whose bit in `blocks` is set, and
/// counted by the barrier at the same place in that block: read once, written several times.
__device__ inline void load_panel_to(std::uint16_t blocks, void* panel, const CUtensorMap& map,
                                     int inner, int outer, Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(panel)),
      "l"(&map), "r"(inner), "r"(outer), "r"(shared_address(&barrier)), "h"(blocks)
      : "memory");
}

// ---- registers (9.7.19.5) ----------------------------------------------------------------------

/// Each thread of this warpgroup gives back registers beyond `count` (a multiple of 8).
template <int count>
__device__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}

/// Each thread of this warpgroup may use `count` registers: waits until others gave enough.
template <int count>
__device__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

// ---- wgmma: products (9.7.15.5.2) --------------------------------------------------------------

/// Orders what the threads did to the accumulators before the products that follow (9.7.15.7.1).
__device__ inline void fence_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

/// Makes one group of the products issued so far.
__device__ inline void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/// Waits until at most the `newest` last groups are not finished.
template <int newest>
__device__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(newest) : "memory");
}

/// A thread's part of a 64 x `columns` product: 256, 128 or 64. Thread l of warp w (of four) holds,
/// in groups of 8 columns, rows r = 16 w + l / 4 and r + 8, columns c = 8 j + 2 (l mod 4) and
/// c + 1:
///   sum[j][0] (r, c)   sum[j][1] (r, c + 1)   sum[j][2] (r + 8, c)   sum[j][3] (r + 8, c + 1)
/// (9.7.15.5.1.1, figures 149 and 151: the same for elements of 2 and of 4 bytes.)
template <int columns>
using Accumulators = float[columns / 8][4];

/// Keeps the compiler from moving its own uses of the accumulators across this place: it knows
/// nothing of products that are still running.
template <int groups>
__device__ __forceinline__ void pin(float (&sum)[groups][4]) {
#pragma unroll
  for (int j = 0; j < groups; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(sum[j][i])::"memory");
}

/// The part of the instruction's name that says k and the types, and the constants at its end:
/// scales of A and B, which are 1, and for two-byte elements whether A and B are MN-major.
template <class T>
struct ProductTypes;
template <>
struct ProductTypes<__nv_bfloat16> {
  static constexpr char text[] = "k16.f32.bf16.bf16";
};
template <>
struct ProductTypes<__half> {
  static constexpr char text[] = "k16.f32.f16.f16";
};
template <>
struct ProductTypes<float> {
  static constexpr char text[] = "k8.f32.tf32.tf32";
};

template <class T, bool a_mn_major, bool b_mn_major>
struct ProductConstants {
  static constexpr char text[] = {
      '1', ',', '1', ',', a_mn_major ? '1' : '0', ',', b_mn_major ? '1' : '0', '\0'};
};
template <>
struct ProductConstants<float, false, false> {
  static constexpr char text[] = "1,1";
};

/// sum += A B for 64 rows, the columns that `sum` has, and 32 bytes of k, by the 128 threads of a
/// warpgroup. Only issues it: `sum` and the panels belong to the product until wait_products says
/// that it is done. The name of an instruction is text, and so is the list of its registers: there
/// is a function for each number of columns.
// clang-format off
#define LOCKSTEP_SUMS_8(j) \
    "+f"(sum[j][0]), "+f"(sum[j][1]), "+f"(sum[j][2]), "+f"(sum[j][3]), \
    "+f"(sum[j + 1][0]), "+f"(sum[j + 1][1]), "+f"(sum[j + 1][2]), "+f"(sum[j + 1][3])
#define LOCKSTEP_SUMS_32(j) \
    LOCKSTEP_SUMS_8(j), LOCKSTEP_SUMS_8(j + 2), LOCKSTEP_SUMS_8(j + 4), LOCKSTEP_SUMS_8(j + 6)

template <class T, bool a_mn_major, bool b_mn_major>
__device__ void issue_product(float (&sum)[8][4], std::uint64_t a, std::uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64%34 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
      "}, %32, %33, 1, %35;"
      : LOCKSTEP_SUMS_32(0)
      : "l"(a), "l"(b), "C"(ProductTypes<T>::text),
        "C"(ProductConstants<T, a_mn_major, b_mn_major>::text));
}

template <class T, bool a_mn_major, bool b_mn_major>
__device__ void issue_product(float (&sum)[16][4], std::uint64_t a, std::uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128%66 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
      "}, %64, %65, 1, %67;"
      : LOCKSTEP_SUMS_32(0), LOCKSTEP_SUMS_32(8)
      : "l"(a), "l"(b), "C"(ProductTypes<T>::text),
        "C"(ProductConstants<T, a_mn_major, b_mn_major>::text));
}

template <class T, bool a_mn_major, bool b_mn_major>
__device__ void issue_product(float (&sum)[32][4], std::uint64_t a, std::uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n256%130 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
      "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
      "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
      "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
      "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
      "}, %128, %129, 1, %131;"
      : LOCKSTEP_SUMS_32(0), LOCKSTEP_SUMS_32(8),
        LOCKSTEP_SUMS_32(16), LOCKSTEP_SUMS_32(24)
      : "l"(a), "l"(b), "C"(ProductTypes<T>::text),
        "C"(ProductConstants<T, a_mn_major, b_mn_major>::text));
}

#undef LOCKSTEP_SUMS_32
#undef LOCKSTEP_SUMS_8
// clang-format on

}  // namespace hopper
