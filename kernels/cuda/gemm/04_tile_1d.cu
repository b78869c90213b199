/// Rung 4: eight results per thread.
///
/// In rung 3 each product needs two numbers from shared memory: 4 bytes per flop, once more, of a
/// memory that delivers 128 bytes per clock to 128 cores that could do 256 flops. Registers are the
/// only place that is fast enough. A thread that computes a column of 8 results reads one number of
/// `b`, keeps it in a register, and uses it eight times:
///
///                    +---+
///                    | b |          per depth: 1 + 8 reads for 8 products (rung 3: 16)
///       +---+        +---+
///       | a |        | c |          and the 8 reads of `a` have one address for all threads of a
///       | a |        | c |          warp: one word, broadcast
///       | : |        | : |
///       +---+        +---+
///
/// The tile grows to 64 x 64 results for 512 threads, and memory sees half as many reads as before:
/// 4 bytes * 2 / (64 * 2 flops) = 0.0625 bytes per flop.
///
/// Source: V. Volkov and J. Demmel, "Benchmarking GPUs to Tune Dense Linear Algebra", SC 2008: the
/// register file is the largest fast memory of a GPU; fewer threads that hold more each are faster.
//
// Counted (./lockstep count --write; docs/counters.md):
//   gemm_04_tile_1d_f32 256x256x64 NN: loads 4.00 (100 %), stores 4.00 (100 %),
//     shared loads 1.00 (1.00), shared stores 1.00 (1.00), DRAM 1.00 of the fewest
//   gemm_04_tile_1d_f32 256x256x64 NT: loads 4.00 (100 %), stores 4.00 (100 %),
//     shared loads 1.00 (1.00), shared stores 1.00 (1.00), DRAM 1.00 of the fewest
//   gemm_04_tile_1d_f32 256x256x64 TN: loads 4.00 (100 %), stores 4.00 (100 %),
//     shared loads 1.00 (1.00), shared stores 1.00 (1.00), DRAM 1.00 of the fewest

#include <cmath>

#include "lockstep/core/cuda/launch.h"
#include "lockstep/kernels/cuda/gemm/ladder.h"
#include "lockstep/kernels/cuda/gemm/operand.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int ROWS = 64, COLUMNS = 64;  // results per block
constexpr int DEPTH = 8;                // step along K
constexpr int THREAD_ROWS = 8;          // results per thread, in one column
constexpr int THREADS = ROWS * COLUMNS / THREAD_ROWS;

__global__ void __launch_bounds__(THREADS) gemm_tile_1d_kernel(const GemmProblem<float> p) {
  __shared__ float a_tile[DEPTH][ROWS + padding<float, DEPTH>];
  __shared__ float b_tile[DEPTH][COLUMNS + padding<float, DEPTH>];
  const Operand<float> a = operand_a(p), b = operand_b(p);
  const auto [row0, column0] = tile_origin(p.n, ROWS, COLUMNS);
  const int row = static_cast<int>(threadIdx.x) / COLUMNS * THREAD_ROWS;
  const int column = static_cast<int>(threadIdx.x) % COLUMNS;

  float sum[THREAD_ROWS] = {};
  for (std::int64_t depth = 0; depth < p.k; depth += DEPTH) {
    load_tile<ROWS, THREADS>(a, row0, depth, a_tile);
    load_tile<COLUMNS, THREADS>(b, column0, depth, b_tile);
    __syncthreads();
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) {
      const float from_b = b_tile[d][column];
#pragma unroll
      for (int i = 0; i < THREAD_ROWS; ++i) sum[i] = std::fma(a_tile[d][row + i], from_b, sum[i]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < THREAD_ROWS; ++i) store(p, row0 + row + i, column0 + column, sum[i]);
}

}  // namespace

void gemm_tile_1d(const GemmProblem<float>& p, cudaStream_t stream) {
  lockstep::cuda::launch<gemm_tile_1d_kernel>(
      {.grid = tile_count(p, ROWS, COLUMNS), .block = THREADS}, stream, p);
}

}  // namespace lockstep::kernels::cuda
