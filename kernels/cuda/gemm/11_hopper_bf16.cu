/// Rung 11: the machinery of Hopper GPUs, for bf16 and f16.
///
/// What rung 10 wastes: issue slots and registers. Every operand passes through registers on its
/// way to the tensor cores (ldmatrix), every warp loads again what its neighbours have loaded, all
/// threads compute addresses for copies, and mma.sync waits for its result. On a Hopper that leaves
/// about 60 % of the tensor cores' speed.
///
/// What changes, instruction by instruction (hopper_intrinsics.h):
/// - wgmma: 128 threads issue a 64 x 256 x 16 product, which reads both operands from shared memory
///   by itself and runs while the threads go on. Registers hold the sums alone: 128 per thread.
/// - TMA: one thread asks for a panel of 64 x 128 bytes by its coordinates; the copy engine finds
///   the addresses, swizzles, fills with zeros what lies beyond the matrix, and counts the bytes on
///   a barrier in shared memory.
/// - So the roles part: a warpgroup that only copies and two that only multiply, joined by a ring
///   of stages. The first gives its registers to the others.
///
///            empty[s]                                       full[s]
///     consumers --> producer --> copy engine --> stage s --> consumers
///
///     stage 0 | A 128 x 64: 2 panels, 16 KiB | B 64 x 256: 4 panels, 32 KiB |   4 stages: 192 KiB
///     stage 1 |             ...              |
///
///   These are wide tiles; hopper/plan.h has the others, below is why.
///   `full` waits for one arrival (the producer's, which announces 48 KiB) and for the bytes;
///   `empty` for all 8 multiplying warps of both blocks that share B. A consumer keeps the
///   products of one stage running while it waits for the next, and frees a stage when its own are
///   finished.
/// - Clusters: two blocks, one above the other, want the same tile of B. Each fetches half of it,
///   and the engine writes it into both. Bytes from L2 per block product of 128 x 256 x 64: 16 KiB
///   of A and 16 instead of 32 KiB of B: 128 flop per byte instead of 85.
/// - A persistent grid: each cluster takes tile after tile, and the producer fetches the first
///   stages of the next tile while the consumers still write the results of the last one. The order
///   of the tiles (Schedule) keeps what is read at one time in L2.
///
/// Transposes cost nothing: wgmma reads two-byte operands in either direction, and the panels of
/// a transposed operand are simply boxes of the matrix as it lies in memory.
///
/// Shared memory per block product of 1024 clock cycles (128 x 256 x 64 products at 2048 a cycle):
/// 48 KiB written, and per consumer 8 + 32 KiB read, together 128 KiB: the 128 bytes per cycle that
/// shared memory can do. This is why the product of a wide tile has 256 columns.
///
/// A cluster of wide tiles computes 256 x 256 results: 1024 x 1024 of them would give work to 32 of
/// 132 multiprocessors. So there are smaller tiles, which read more bytes per product, and sums
/// over k can be cut into slices: then more blocks of the cluster have the same tile, and add up
/// their sums where operands were (cluster_fold.cuh). hopper/plan.cpp chooses.
///
/// Sources: PTX ISA 9.0, sections 9.7.9.25 (copies), 9.7.13.15 (mbarrier), 9.7.15 (wgmma);
/// "Efficient GEMM in CUDA" in CUTLASS's documentation, on warp specialization; pranjalssh/fast.cu
/// and its worklog "Outperforming cuBLAS on H100" (2024), which measures each of these steps.
//
// Counted (./lockstep count --write; docs/counters.md):
//   gemm_11_hopper_bf16_bf16 256x256x64 NN: stores 16.00 (100 %), shared loads 4.00 (4.00),
//     shared stores 1.00 (1.00), TMA 262144 B, DRAM 1.00 of the fewest
//   gemm_11_hopper_bf16_bf16 256x256x64 NT: stores 16.00 (100 %), shared loads 4.00 (4.00),
//     shared stores 1.00 (1.00), TMA 262144 B, DRAM 1.00 of the fewest
//   gemm_11_hopper_bf16_bf16 256x256x64 TN: stores 16.00 (100 %), shared loads 4.00 (4.00),
//     shared stores 1.00 (1.00), TMA 262144 B, DRAM 1.00 of the fewest
//   gemm_11_hopper_bf16_bf16_and_rows 256x256x64 TN: stores 14.33 (100 %),
//     shared loads 2.50 (2.50), shared stores 1.00 (1.00), TMA 262144 B, DRAM 1.00 of the fewest
//   gemm_11_hopper_bf16_bf16_wide 256x256x64 NN: stores 16.00 (100 %), shared loads 4.00 (4.00),
//     shared stores 1.00 (1.00), TMA 65536 B, DRAM 1.00 of the fewest
//   gemm_11_hopper_bf16_bf16_wide 256x256x64 NT: stores 16.00 (100 %), shared loads 4.00 (4.00),
//     shared stores 1.00 (1.00), TMA 65536 B, DRAM 1.00 of the fewest
//   gemm_11_hopper_bf16_bf16_wide 256x256x64 TN: stores 16.00 (100 %), shared loads 4.00 (4.00),
//     shared stores 1.00 (1.00), TMA 65536 B, DRAM 1.00 of the fewest

#include "lockstep/kernels/cuda/gemm/hopper/hopper.h"
#include "lockstep/kernels/cuda/gemm/hopper/product.cuh"
#include "lockstep/kernels/cuda/gemm/ladder.h"
#include "lockstep/kernels/cuda/gemm/operand.cuh"

namespace lockstep::kernels::cuda {
namespace {

template <class T, class C>
void hopper_product(const GemmProblem<T, C>& p, const HopperPlan& plan, cudaStream_t stream) {
  const CUtensorMap a =
      p.transpose_a ? tensor_map(p.a, p.k, p.m, p.m) : tensor_map(p.a, p.m, p.k, p.k);
  const CUtensorMap b =
      p.transpose_b ? tensor_map(p.b, p.n, p.k, p.k) : tensor_map(p.b, p.k, p.n, p.n);
  const auto run =
      p.transpose_a ? (p.transpose_b ? run_plan<T, true, true, C> : run_plan<T, true, false, C>)
                    : (p.transpose_b ? run_plan<T, false, true, C> : run_plan<T, false, false, C>);
  run(p, a, b, plan, stream);
}

}  // namespace

bool hopper_available() { return device_attribute(cudaDevAttrComputeCapabilityMajor) == 9; }

template <class T, class C>
void gemm_hopper_16(const GemmProblem<T, C>& problem, const HopperPlan& plan, cudaStream_t stream) {
  if (!hopper_can(problem) || !hopper_available()) return gemm_tensor_16(problem, stream);
  hopper_product(on_device(problem), plan, stream);
}
template void gemm_hopper_16(const GemmProblem<BFloat16>&, const HopperPlan&, cudaStream_t);
template void gemm_hopper_16(const GemmProblem<Half>&, const HopperPlan&, cudaStream_t);
template void gemm_hopper_16(const GemmProblem<BFloat16, float>&, const HopperPlan&, cudaStream_t);
template void gemm_hopper_16(const GemmProblem<Half, float>&, const HopperPlan&, cudaStream_t);

}  // namespace lockstep::kernels::cuda
