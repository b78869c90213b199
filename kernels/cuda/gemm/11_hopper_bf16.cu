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
///   `full` waits for one arrival (the producer's, which announces 48 KiB) and for the bytes;
///   `empty` for all 8 multiplying warps of both blocks of the cluster. A consumer keeps the
///   products of one stage running while it waits for the next, and frees a stage when its own are
///   finished.
/// - Clusters: two blocks, one above the other, want the same tile of B. Each fetches half of it,
///   and the engine writes it into both. Bytes from L2 per block product of 128 x 256 x 64: 16 KiB
///   of A and 16 instead of 32 KiB of B: 128 flop per byte instead of 85.
/// - A persistent grid: each cluster takes tile after tile, and the producer fetches the first
///   stages of the next tile while the consumers still write the results of the last one. The order
///   of the tiles (Tiles) keeps what is read at one time in L2.
///
/// Transposes cost nothing: wgmma reads two-byte operands in either direction, and the panels of
/// a transposed operand are simply boxes of the matrix as it lies in memory.
///
/// Shared memory per block product of 1024 clock cycles (128 x 256 x 64 products at 2048 a cycle):
/// 48 KiB written, and per consumer 8 + 32 KiB read, together 128 KiB: the 128 bytes per cycle that
/// shared memory can do. This is why the product is 256 wide.
///
/// Sources: PTX ISA 9.0, sections 9.7.9.25 (copies), 9.7.13.15 (mbarrier), 9.7.15 (wgmma);
/// "Efficient GEMM in CUDA" in CUTLASS's documentation, on warp specialization; pranjalssh/fast.cu
/// and its worklog "Outperforming cuBLAS on H100" (2024), which measures each of these steps.

#include "lockstep/kernels/cuda/gemm/hopper.h"
#include "lockstep/kernels/cuda/gemm/hopper_product.cuh"
#include "lockstep/kernels/cuda/gemm/ladder.h"
#include "lockstep/kernels/cuda/gemm/operand.cuh"

namespace lockstep::kernels::cuda {
namespace {

template <class Bits, class CBits>
void hopper_product(const GemmProblem<Bits, CBits>& bits, cudaStream_t stream) {
  const auto p = on_device(bits);
  using T = OnDevice<Bits>;
  using C = OnDevice<CBits>;
  const auto *a = p.a, *b = p.b;
  const Output<C> out{p.c, p.bias, static_cast<int>(p.m), static_cast<int>(p.n), p.accumulate};
  const CUtensorMap a_map =
      p.transpose_a ? tensor_map(a, p.k, p.m, p.m) : tensor_map(a, p.m, p.k, p.k);
  const CUtensorMap b_map =
      p.transpose_b ? tensor_map(b, p.n, p.k, p.k) : tensor_map(b, p.k, p.n, p.n);
  const auto launch =
      p.transpose_a
          ? (p.transpose_b ? launch_product<T, true, true, C> : launch_product<T, true, false, C>)
          : (p.transpose_b ? launch_product<T, false, true, C>
                           : launch_product<T, false, false, C>);
  launch(a_map, b_map, out, static_cast<int>(p.k), stream);
}

}  // namespace

bool hopper_available() { return device_attribute(cudaDevAttrComputeCapabilityMajor) == 9; }

template <class T, class C>
void gemm_hopper_16(const GemmProblem<T, C>& problem, cudaStream_t stream) {
  if (!hopper_can(problem) || !hopper_available()) return gemm_tensor_16(problem, stream);
  hopper_product(problem, stream);
}
template void gemm_hopper_16(const GemmProblem<BFloat16>&, cudaStream_t);
template void gemm_hopper_16(const GemmProblem<Half>&, cudaStream_t);
template void gemm_hopper_16(const GemmProblem<BFloat16, float>&, cudaStream_t);
template void gemm_hopper_16(const GemmProblem<Half, float>&, cudaStream_t);

}  // namespace lockstep::kernels::cuda
