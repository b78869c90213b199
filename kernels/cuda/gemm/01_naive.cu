/// Rung 1: one thread per result, three lines.
///
///   c[i][j] = sum over l of a[i][l] b[l][j]
///
/// Each product of two numbers (2 flops) reads 8 bytes: 4 bytes per flop. An H200 reads 4.8 TB/s
/// from its memory and computes 67 TFLOP/s, so it can afford 0.07 bytes per flop; caches must
/// provide the rest. This rung makes that as hard as it can be: the threads of a warp, which run
/// together, are neighbours in x, and here x walks down the rows of c. At every step of the sum
///
///     thread   0        1        2       ...    the warp reads
///     a      [i][l]  [i+1][l] [i+2][l]          16 words, one from each of 16 rows
///     b      [l][j]   [l][j]   [l][j]           two words: a warp is two columns of 16 threads
///
/// and for the 16 words of `a` memory delivers 16 sectors of 32 bytes: an eighth of it is used.
///
/// Source of the ladder's idea: S. Boehm, "How to Optimize a CUDA Matmul Kernel for cuBLAS-like
/// Performance", 2022, whose first six kernels correspond to rungs 1 to 6.
//
// Counted (./lockstep count --write; docs/counters.md):
//   gemm_01_naive_f32 256x256x64 NN: loads 8.50 (17 %), stores 16.00 (25 %),
//     DRAM 1.00 of the fewest
//   gemm_01_naive_f32 256x256x64 NT: loads 9.00 (16 %), stores 16.00 (25 %),
//     DRAM 1.00 of the fewest
//   gemm_01_naive_f32 256x256x64 TN: loads 1.50 (100 %), stores 16.00 (25 %),
//     DRAM 1.00 of the fewest

#include <cmath>

#include "lockstep/core/cuda/launch.h"
#include "lockstep/kernels/cuda/gemm/ladder.h"
#include "lockstep/kernels/cuda/gemm/operand.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int ROWS = 16, COLUMNS = 16;  // results per block

template <class T>
__global__ void gemm_naive_kernel(const GemmProblem<T> p) {
  const auto [row0, column0] = tile_origin(p.n, ROWS, COLUMNS);
  const std::int64_t i = row0 + threadIdx.x, j = column0 + threadIdx.y;
  if (i >= p.m || j >= p.n) return;
  const Operand<T> a = operand_a(p), b = operand_b(p);
  T sum = 0;
  for (std::int64_t l = 0; l < p.k; ++l) sum = std::fma(*a.address(i, l), *b.address(j, l), sum);
  store(p, i, j, sum);
}

template <class T>
void run(const GemmProblem<T>& p, cudaStream_t stream) {
  lockstep::cuda::launch<gemm_naive_kernel<T>>(
      {.grid = tile_count(p, ROWS, COLUMNS), .block = dim3(ROWS, COLUMNS)}, stream, p);
}

}  // namespace

void gemm_naive(const GemmProblem<float>& p, cudaStream_t stream) { run(p, stream); }
void gemm_naive(const GemmProblem<double>& p, cudaStream_t stream) { run(p, stream); }

}  // namespace lockstep::kernels::cuda
