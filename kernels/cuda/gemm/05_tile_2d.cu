/// Rung 5: a square of results per thread.
///
/// A thread of rung 4 reads 9 numbers for 8 products. With a square of 8 x 8 results it reads
/// 8 + 8 numbers and forms all 64 products of them, an outer product per depth:
///
///                       b b b b b b b b            16 reads for 64 products: a quarter of a read
///                   a | c c c c c c c c |          per product (rung 4: 1.1; rung 3: 2)
///                   a | c c c c c c c c |
///                   : | : : : : : : : : |
///
/// The block's tile grows to 128 x 128, 0.031 bytes per flop from memory: less than the 0.07 that
/// an H200 can afford. 64 sums and 16 operands per thread still fit into registers; they stay there
/// because every index into these arrays is known when the loops are unrolled.
///
/// What it wastes are its stores: neighbouring threads have results that lie 8 columns apart, so
/// each store of a warp touches 32 sectors of 32 bytes for 4 bytes of each. Rung 6 mends that, too.
///
/// This rung is also the one for f64, with 4 x 4 results per thread (a double takes two registers).
//
// Counted (./lockstep count --write; docs/counters.md):
//   gemm_05_tile_2d_f32 256x256x64 NN: loads 4.00 (100 %), stores 32.00 (12 %),
//     shared loads 2.50 (1.00), shared stores 1.00 (1.00), DRAM 1.00 of the fewest
//   gemm_05_tile_2d_f32 256x256x64 NT: loads 4.00 (100 %), stores 32.00 (12 %),
//     shared loads 2.50 (1.00), shared stores 1.00 (1.00), DRAM 1.00 of the fewest
//   gemm_05_tile_2d_f32 256x256x64 TN: loads 4.00 (100 %), stores 32.00 (12 %),
//     shared loads 2.50 (1.00), shared stores 1.00 (1.00), DRAM 1.00 of the fewest

#include <cmath>

#include "lockstep/core/cuda/launch.h"
#include "lockstep/kernels/cuda/gemm/ladder.h"
#include "lockstep/kernels/cuda/gemm/operand.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int DEPTH = 8;      // step along K
constexpr int THREADS = 256;  // 16 x 16

/// SIDE x SIDE results per thread: THREAD_ROWS and THREAD_COLUMNS of other rungs.
template <class T, int SIDE>
__global__ void __launch_bounds__(THREADS) gemm_tile_2d_kernel(const GemmProblem<T> p) {
  constexpr int ROWS = 16 * SIDE, COLUMNS = 16 * SIDE;  // results per block
  __shared__ T a_tile[DEPTH][ROWS + padding<T, DEPTH>];
  __shared__ T b_tile[DEPTH][COLUMNS + padding<T, DEPTH>];
  const Operand<T> a = operand_a(p), b = operand_b(p);
  const auto [row0, column0] = tile_origin(p.n, ROWS, COLUMNS);
  const int row = static_cast<int>(threadIdx.x) / 16 * SIDE;
  const int column = static_cast<int>(threadIdx.x) % 16 * SIDE;

  T sum[SIDE][SIDE] = {};
  for (std::int64_t depth = 0; depth < p.k; depth += DEPTH) {
    load_tile<ROWS, THREADS>(a, row0, depth, a_tile);
    load_tile<COLUMNS, THREADS>(b, column0, depth, b_tile);
    __syncthreads();
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) {
      T from_a[SIDE], from_b[SIDE];
#pragma unroll
      for (int i = 0; i < SIDE; ++i) {
        from_a[i] = a_tile[d][row + i];
        from_b[i] = b_tile[d][column + i];
      }
#pragma unroll
      for (int i = 0; i < SIDE; ++i)
#pragma unroll
        for (int j = 0; j < SIDE; ++j) sum[i][j] = std::fma(from_a[i], from_b[j], sum[i][j]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < SIDE; ++i)
#pragma unroll
    for (int j = 0; j < SIDE; ++j) store(p, row0 + row + i, column0 + column + j, sum[i][j]);
}

template <int SIDE, class T>
void run(const GemmProblem<T>& p, cudaStream_t stream) {
  lockstep::cuda::launch<gemm_tile_2d_kernel<T, SIDE>>(
      {.grid = tile_count(p, 16 * SIDE, 16 * SIDE), .block = THREADS}, stream, p);
}

}  // namespace

void gemm_tile_2d(const GemmProblem<float>& p, cudaStream_t stream) { run<8>(p, stream); }
void gemm_tile_2d(const GemmProblem<double>& p, cudaStream_t stream) { run<4>(p, stream); }

}  // namespace lockstep::kernels::cuda
