/// Rung 6: 16 bytes per access.
///
/// The arithmetic of rung 5 is right; now instructions are scarce. Per depth a thread issues 16
/// reads of shared memory for 64 products, and threads that are neighbours read numbers that lie 8
/// words apart, so that four of them meet in one bank. A GPU has accesses of 16 bytes, for global
/// and for shared memory: a quarter of the instructions. What stands in the way is the shape of a
/// thread's square: its rows and columns must come in quads, and the quads of neighbouring threads
/// should lie next to each other. So the 8 x 8 results become four squares of 4 x 4:
///
///               0       4             64      68                columns of the tile
///           0   | t0    | t1    | ..  | t0    | t1    | ..
///           4   | t16   | t17   | ..  | t16   | t17   | ..      t: number of the thread
///           :
///          64   | t0    | t1    | ..  | t0    | t1    | ..
///
/// Per depth: 4 reads (2 quads of `a`, 2 of `b`) for 64 products, without conflicts. Tiles are read
/// from global memory by one quad per thread and operand, and c is written by quads: whole sectors
/// of memory (rung 5: an eighth of each). Where pointers or rows are not aligned to 16 bytes the
/// same kernel accesses global memory by single floats.
//
// Counted (./lockstep count --write; docs/counters.md):
//   gemm_06_vectorized_f32 256x256x64 NN: loads 16.00 (100 %), stores 16.00 (100 %),
//     shared loads 4.00 (4.00), shared stores 1.60 (1.60), DRAM 1.00 of the fewest
//   gemm_06_vectorized_f32 256x256x64 NT: loads 16.00 (100 %), stores 16.00 (100 %),
//     shared loads 4.00 (4.00), shared stores 1.00 (1.00), DRAM 1.00 of the fewest
//   gemm_06_vectorized_f32 256x256x64 TN: loads 16.00 (100 %), stores 16.00 (100 %),
//     shared loads 4.00 (4.00), shared stores 4.00 (4.00), DRAM 1.00 of the fewest

#include <cmath>

#include "lockstep/core/cuda/launch.h"
#include "lockstep/kernels/cuda/gemm/ladder.h"
#include "lockstep/kernels/cuda/gemm/quads.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int ROWS = 128, COLUMNS = 128;            // results per block
constexpr int DEPTH = 8;                            // step along K
constexpr int THREAD_ROWS = 8, THREAD_COLUMNS = 8;  // results per thread, in four squares
constexpr int THREADS = 256;                        // 16 x 16
constexpr int ROW_A = ROWS + padding<float, DEPTH>, ROW_B = COLUMNS + padding<float, DEPTH>;

/// VECTOR: 16-byte loads.
template <bool VECTOR>
__global__ void __launch_bounds__(THREADS, VECTOR ? 2 : 1)
    gemm_vectorized_kernel(const GemmProblem<float> p) {
  __shared__ __align__(16) float a_tile[DEPTH][ROW_A];
  __shared__ __align__(16) float b_tile[DEPTH][ROW_B];
  const Operand<float> a = operand_a(p), b = operand_b(p);
  const auto [row0, column0] = tile_origin(p.n, ROWS, COLUMNS);
  const int row = static_cast<int>(threadIdx.x) / 16 * 4;
  const int column = static_cast<int>(threadIdx.x) % 16 * 4;

  float sum[THREAD_ROWS][THREAD_COLUMNS] = {};
  for (std::int64_t depth = 0; depth < p.k; depth += DEPTH) {
    load_tile_of_quads<VECTOR, THREADS>(a, row0, depth, a_tile);
    load_tile_of_quads<VECTOR, THREADS>(b, column0, depth, b_tile);
    __syncthreads();
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) {
      float from_a[THREAD_ROWS], from_b[THREAD_COLUMNS];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        read_quad(&a_tile[d][half * (ROWS / 2) + row], from_a + half * 4);
        read_quad(&b_tile[d][half * (COLUMNS / 2) + column], from_b + half * 4);
      }
#pragma unroll
      for (int i = 0; i < THREAD_ROWS; ++i)
#pragma unroll
        for (int j = 0; j < THREAD_COLUMNS; ++j)
          sum[i][j] = std::fma(from_a[i], from_b[j], sum[i][j]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < THREAD_ROWS; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      store_quad(p, row0 + i / 4 * (ROWS / 2) + row + i % 4,
                 column0 + half * (COLUMNS / 2) + column, sum[i] + half * 4, VECTOR);
}

}  // namespace

void gemm_vectorized(const GemmProblem<float>& p, cudaStream_t stream) {
  const lockstep::cuda::LaunchShape shape{.grid = tile_count(p, ROWS, COLUMNS), .block = THREADS};
  if (operand_a(p).aligned_rows() && operand_b(p).aligned_rows() && aligned_results(p))
    lockstep::cuda::launch<gemm_vectorized_kernel<true>>(shape, stream, p);
  else
    lockstep::cuda::launch<gemm_vectorized_kernel<false>>(shape, stream, p);
}

}  // namespace lockstep::kernels::cuda
