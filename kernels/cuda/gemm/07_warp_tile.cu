/// Rung 7: a tile per warp.
///
/// In rung 6 the 32 threads of a warp lie as 2 x 16 in the block's square, so per depth a warp
/// takes 2 * 8 numbers of `a` and 16 * 8 of `b` from shared memory: 144 words for 2048 products.
/// What counts is the perimeter of the warp's results, and the best is a square, or nearly:
///
///                      64 columns                      128 x 128 results of a block:
///              +--------------------------+              +-----------+-----------+
///     32 rows  | 4 x 8 threads,           |              |  warp 0   |  warp 1   |
///              | 8 x 8 results for each   |              +-----------+-----------+
///              +--------------------------+              |  warp 2   |  warp 3   |
///                                                        +-----------+-----------+
///     4 * 8 + 8 * 8 = 96 words for 2048 products         |   ...     |   ...     |
///
/// Numbers that several threads read at once are delivered once. Which thread stands where matters
/// too: see warp_lanes.cuh. As in rung 6 a thread's results come as squares of 4 x 4: quads of rows
/// at 0 and 16, quads of columns at 0 and 32 of the warp's tile.
///
/// Source: CUTLASS documentation, "Efficient GEMM in CUDA": threadblock, warp and thread tiles.
//
// Counted (./lockstep count --write; docs/counters.md):
//   gemm_07_warp_tile_f32 256x256x64 NN: loads 16.00 (100 %), stores 16.00 (100 %),
//     shared loads 4.00 (4.00), shared stores 1.60 (1.60), DRAM 1.00 of the fewest
//   gemm_07_warp_tile_f32 256x256x64 NT: loads 16.00 (100 %), stores 16.00 (100 %),
//     shared loads 4.00 (4.00), shared stores 1.00 (1.00), DRAM 1.00 of the fewest
//   gemm_07_warp_tile_f32 256x256x64 TN: loads 16.00 (100 %), stores 16.00 (100 %),
//     shared loads 4.00 (4.00), shared stores 4.00 (4.00), DRAM 1.00 of the fewest

#include <cmath>

#include "lockstep/core/cuda/launch.h"
#include "lockstep/kernels/cuda/gemm/ladder.h"
#include "lockstep/kernels/cuda/gemm/quads.cuh"
#include "lockstep/kernels/cuda/gemm/warp_lanes.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int ROWS = 128, COLUMNS = 128;            // results per block
constexpr int DEPTH = 8;                            // step along K
constexpr int THREAD_ROWS = 8, THREAD_COLUMNS = 8;  // results per thread, in four squares
constexpr int WARP_ROWS = 4 * THREAD_ROWS, WARP_COLUMNS = 8 * THREAD_COLUMNS;
constexpr int WARPS_ACROSS = COLUMNS / WARP_COLUMNS;
constexpr int THREADS = ROWS / WARP_ROWS * WARPS_ACROSS * 32;
constexpr int ROW_A = ROWS + padding<float, DEPTH>, ROW_B = COLUMNS + padding<float, DEPTH>;

/// VECTOR: 16-byte loads.
template <bool VECTOR>
__global__ void __launch_bounds__(THREADS, 2) gemm_warp_tile_kernel(const GemmProblem<float> p) {
  __shared__ __align__(16) float a_tile[DEPTH][ROW_A];
  __shared__ __align__(16) float b_tile[DEPTH][ROW_B];
  const Operand<float> a = operand_a(p), b = operand_b(p);
  const auto [row0, column0] = tile_origin(p.n, ROWS, COLUMNS);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const LanePlace lane = lane_place();
  const int row = warp / WARPS_ACROSS * WARP_ROWS + lane.row * 4;
  const int column = warp % WARPS_ACROSS * WARP_COLUMNS + lane.column * 4;

  float sum[THREAD_ROWS][THREAD_COLUMNS] = {};
  for (std::int64_t depth = 0; depth < p.k; depth += DEPTH) {
    load_tile_of_quads<VECTOR, THREADS>(a, row0, depth, a_tile);
    load_tile_of_quads<VECTOR, THREADS>(b, column0, depth, b_tile);
    __syncthreads();
#pragma unroll 2  // all 8 at once would not fit into 128 registers, which 2 blocks share
    for (int d = 0; d < DEPTH; ++d) {
      float from_a[THREAD_ROWS], from_b[THREAD_COLUMNS];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        read_quad(&a_tile[d][half * (WARP_ROWS / 2) + row], from_a + half * 4);
        read_quad(&b_tile[d][half * (WARP_COLUMNS / 2) + column], from_b + half * 4);
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
      store_quad(p, row0 + i / 4 * (WARP_ROWS / 2) + row + i % 4,
                 column0 + half * (WARP_COLUMNS / 2) + column, sum[i] + half * 4, VECTOR);
}

}  // namespace

void gemm_warp_tile(const GemmProblem<float>& p, cudaStream_t stream) {
  const lockstep::cuda::LaunchShape shape{.grid = tile_count(p, ROWS, COLUMNS), .block = THREADS};
  if (operand_a(p).aligned_rows() && operand_b(p).aligned_rows() && aligned_results(p))
    lockstep::cuda::launch<gemm_warp_tile_kernel<true>>(shape, stream, p);
  else
    lockstep::cuda::launch<gemm_warp_tile_kernel<false>>(shape, stream, p);
}

}  // namespace lockstep::kernels::cuda
