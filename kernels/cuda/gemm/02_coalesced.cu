/// Rung 2: the same three lines, with neighbouring threads along the rows of c.
///
/// Rung 1 wastes seven eighths of what memory delivers. Swapping the roles of x and y is enough:
///
///     thread   0        1        2       ...    the warp reads
///     a      [i][l]   [i][l]   [i][l]           one word, for every thread
///     b      [l][j] [l][j+1] [l][j+2]           32 words in a row: 4 sectors, all of them used
///
/// which is called a coalesced access, and c is written the same way. Still 4 bytes per flop are
/// asked of the caches, and with transposed operands the old trouble is back: where `a` lies as
/// (k, m) nothing changes (one word), but where `b` lies as (n, k) every thread reads another row.
//
// Counted (./lockstep count --write; docs/counters.md):
//   gemm_02_coalesced_f32 256x256x64 NN: loads 2.50 (100 %), stores 4.00 (100 %),
//     DRAM 1.00 of the fewest
//   gemm_02_coalesced_f32 256x256x64 NT: loads 16.50 (15 %), stores 4.00 (100 %),
//     DRAM 1.00 of the fewest
//   gemm_02_coalesced_f32 256x256x64 TN: loads 2.50 (100 %), stores 4.00 (100 %),
//     DRAM 1.00 of the fewest

#include <cmath>

#include "lockstep/core/cuda/launch.h"
#include "lockstep/kernels/cuda/gemm/ladder.h"
#include "lockstep/kernels/cuda/gemm/operand.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int ROWS = 8, COLUMNS = 32;  // results per block

__global__ void gemm_coalesced_kernel(const GemmProblem<float> p) {
  const auto [row0, column0] = tile_origin(p.n, ROWS, COLUMNS);
  const std::int64_t i = row0 + threadIdx.y, j = column0 + threadIdx.x;
  if (i >= p.m || j >= p.n) return;
  const Operand<float> a = operand_a(p), b = operand_b(p);
  float sum = 0;
  for (std::int64_t l = 0; l < p.k; ++l) sum = std::fma(*a.address(i, l), *b.address(j, l), sum);
  store(p, i, j, sum);
}

}  // namespace

void gemm_coalesced(const GemmProblem<float>& p, cudaStream_t stream) {
  lockstep::cuda::launch<gemm_coalesced_kernel>(
      {.grid = tile_count(p, ROWS, COLUMNS), .block = dim3(COLUMNS, ROWS)}, stream, p);
}

}  // namespace lockstep::kernels::cuda
