/// Rung 3: a block reads each number once and shares it.
///
/// In rung 2 the threads of a block ask for the same numbers again and again: 32 of them for each
/// number of `a`, 8 for each of `b`. Here a block computes 32 x 32 results and goes through K in
/// steps of 32. In each step its threads copy one tile of `a` and one of `b` into shared memory,
/// together and coalesced, wait for each other, and take their operands from there:
///
///                       K                  N
///            +---+---+---+         +---+---+
///          M |   | A |   |       K |   | B |        tile of c += tile of a * tile of b
///            +---+---+---+         +---+---+
///
/// Memory now sees 2 * 32 * 32 words for 32^3 products, 4 bytes * 2 / (32 * 2 flops) = 0.125 bytes
/// per flop, a 32nd of rung 1. The copying takes care of transposes too: from here on tiles lie in
/// shared memory as [depth][outer], however the operand lies in memory (see operand.cuh), and both
/// ways of reading are coalesced.
///
/// Source: CUDA C++ Programming Guide, "Shared Memory".
//
// Counted (./lockstep count --write; docs/counters.md):
//   gemm_03_shared_f32 256x256x64 NN: loads 4.00 (100 %), stores 4.00 (100 %),
//     shared loads 1.00 (1.00), shared stores 1.00 (1.00), DRAM 1.00 of the fewest
//   gemm_03_shared_f32 256x256x64 NT: loads 4.00 (100 %), stores 4.00 (100 %),
//     shared loads 1.00 (1.00), shared stores 1.00 (1.00), DRAM 1.00 of the fewest
//   gemm_03_shared_f32 256x256x64 TN: loads 4.00 (100 %), stores 4.00 (100 %),
//     shared loads 1.00 (1.00), shared stores 1.00 (1.00), DRAM 1.00 of the fewest

#include <cmath>

#include "lockstep/core/cuda/launch.h"
#include "lockstep/kernels/cuda/gemm/ladder.h"
#include "lockstep/kernels/cuda/gemm/operand.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int ROWS = 32, COLUMNS = 32;  // results per block
constexpr int DEPTH = 32;               // step along K
constexpr int THREADS = ROWS * COLUMNS;

__global__ void __launch_bounds__(THREADS) gemm_shared_kernel(const GemmProblem<float> p) {
  __shared__ float a_tile[DEPTH][ROWS + padding<float, DEPTH>];     // (depth, row of c)
  __shared__ float b_tile[DEPTH][COLUMNS + padding<float, DEPTH>];  // (depth, column of c)
  const Operand<float> a = operand_a(p), b = operand_b(p);
  const auto [row0, column0] = tile_origin(p.n, ROWS, COLUMNS);
  const int row = static_cast<int>(threadIdx.x) / COLUMNS;
  const int column = static_cast<int>(threadIdx.x) % COLUMNS;

  float sum = 0;
  for (std::int64_t depth = 0; depth < p.k; depth += DEPTH) {
    load_tile<ROWS, THREADS>(a, row0, depth, a_tile);
    load_tile<COLUMNS, THREADS>(b, column0, depth, b_tile);
    __syncthreads();  // both tiles are complete
    for (int d = 0; d < DEPTH; ++d) sum = std::fma(a_tile[d][row], b_tile[d][column], sum);
    __syncthreads();  // no thread needs them any more
  }
  store(p, row0 + row, column0 + column, sum);
}

}  // namespace

void gemm_shared(const GemmProblem<float>& p, cudaStream_t stream) {
  lockstep::cuda::launch<gemm_shared_kernel>(
      {.grid = tile_count(p, ROWS, COLUMNS), .block = THREADS}, stream, p);
}

}  // namespace lockstep::kernels::cuda
