#pragma once
/// What the rungs of the ladder share: how they look at their operands, how a tile of one gets into
/// shared memory, and how a finished sum gets into c. For .cu files only.
///
/// The two operands of a product are alike: each has an *outer* dimension (the rows of op(a), the
/// columns of op(b)) and the *depth* K along which products are summed. And the two flags that ask
/// for a transpose decide one thing only, which of the two dimensions is contiguous in memory:
///
///               not transposed               transposed
///   a      (m, k): depth contiguous     (k, m): outer contiguous
///   b      (k, n): outer contiguous     (n, k): depth contiguous
///
/// So a kernel needs two ways to read an operand, not four combinations of flags.

#include <cuda_runtime.h>

#include <cstdint>

#include "lockstep/kernels/cuda/convert.cuh"
#include "lockstep/kernels/formulas/gemm.h"

namespace lockstep::kernels::cuda {

template <class T>
struct Operand {
  const T* data;
  std::int64_t outer;
  std::int64_t depth;
  bool depth_contiguous;

  /// Elements between two neighbours in the dimension that is not contiguous.
  __host__ __device__ std::int64_t pitch() const { return depth_contiguous ? depth : outer; }
  __device__ __forceinline__ const T* address(std::int64_t o, std::int64_t d) const {
    return data + (depth_contiguous ? o * depth + d : d * outer + o);
  }
  __device__ __forceinline__ bool contains(std::int64_t o, std::int64_t d) const {
    return o < outer && d < depth;
  }
  /// True if every row of memory begins at a multiple of 16 bytes. Then a group of 16 bytes that
  /// begins at a multiple of 16 lies wholly inside the operand or wholly outside.
  bool aligned_rows() const {
    return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 &&
           pitch() * static_cast<std::int64_t>(sizeof(T)) % 16 == 0;
  }
};

template <class T, class C>
__host__ __device__ Operand<T> operand_a(const GemmProblem<T, C>& p) {
  return {p.a, p.m, p.k, !p.transpose_a};
}
template <class T, class C>
__host__ __device__ Operand<T> operand_b(const GemmProblem<T, C>& p) {
  return {p.b, p.n, p.k, p.transpose_b};
}

/// Whether rows of `a`, or of `b`, are aligned, in whichever type they lie in memory.
template <class T, class C>
bool aligned_a(const GemmProblem<T, C>& p) {
  if (p.a_f32) return Operand<float>{p.a_f32, p.m, p.k, !p.transpose_a}.aligned_rows();
  return operand_a(p).aligned_rows();
}
template <class T, class C>
bool aligned_b(const GemmProblem<T, C>& p) {
  if (p.b_f32) return Operand<float>{p.b_f32, p.n, p.k, p.transpose_b}.aligned_rows();
  return operand_b(p).aligned_rows();
}

/// The same problem with CUDA's names for the types of numbers.
template <class T, class C>
auto on_device(const GemmProblem<T, C>& p) {
  using Factor = OnDevice<T>;
  using Result = OnDevice<C>;
  return GemmProblem<Factor, Result>{p.m,
                                     p.n,
                                     p.k,
                                     reinterpret_cast<const Factor*>(p.a),
                                     p.transpose_a,
                                     reinterpret_cast<const Factor*>(p.b),
                                     p.transpose_b,
                                     reinterpret_cast<Result*>(p.c),
                                     p.accumulate,
                                     p.bias,
                                     p.relu,
                                     reinterpret_cast<const Result*>(p.positive),
                                     reinterpret_cast<Result*>(p.row_sums),
                                     p.accumulate_row_sums,
                                     p.a_f32,
                                     p.b_f32};
}

/// relu's backward: the gradient, or 0 where relu's output y is not positive. NaN passes, as in
/// the kernel of relu alone; with y = gradient it is relu itself.
template <class Sum>
__device__ __forceinline__ Sum where_positive(Sum y, Sum gradient) {
  return y <= 0 ? Sum(0) : gradient;
}

/// Finishes c[row][column], if it exists: sum + what was there, or what the epilogue makes of it.
template <class T, class C, class Sum>
__device__ __forceinline__ void store(const GemmProblem<T, C>& p, std::int64_t row,
                                      std::int64_t column, Sum sum) {
  if (row >= p.m || column >= p.n) return;
  const std::int64_t i = row * p.n + column;
  if (p.bias) sum += convert<Sum>(p.bias[column]);
  if (p.accumulate) sum += convert<Sum>(p.c[i]);
  if (p.relu) sum = where_positive(sum, sum);
  if (p.positive) sum = where_positive(convert<Sum>(p.positive[i]), sum);
  p.c[i] = convert<C>(sum);
}

/// Finishes the sum of a row of op(a), if it exists.
template <class T, class C>
__device__ __forceinline__ void store_row_sum(const GemmProblem<T, C>& p, std::int64_t row,
                                              float sum) {
  if (row >= p.m) return;
  if (p.accumulate_row_sums) sum += convert<float>(p.row_sums[row]);
  p.row_sums[row] = convert<C>(sum);
}

/// The number of tiles of `size` that cover `length`.
__host__ __device__ constexpr std::int64_t tiles(std::int64_t length, int size) {
  return (length + size - 1) / size;
}

/// Where a block's tile of c begins. Blocks are numbered along the rows of tiles, in one grid
/// dimension, because the others end at 65535.
struct TileOrigin {
  std::int64_t row, column;
};
__device__ __forceinline__ TileOrigin tile_origin(std::int64_t n, int tile_rows, int tile_columns) {
  const std::int64_t across = tiles(n, tile_columns);
  return {blockIdx.x / across * tile_rows, blockIdx.x % across * tile_columns};
}

/// The number of blocks for it.
template <class T, class C>
unsigned tile_count(const GemmProblem<T, C>& p, int tile_rows, int tile_columns) {
  return static_cast<unsigned>(tiles(p.m, tile_rows) * tiles(p.n, tile_columns));
}

/// Elements by which the rows of a tile in shared memory are longer than its outer size.
///
/// `load_tile` transposes where depth is contiguous in memory: there the threads of a warp hold
/// DEPTH consecutive depths of 32 / DEPTH consecutive outers, and write them into DEPTH different
/// rows. Shared memory has 32 banks of 4 bytes, and threads that meet in a bank wait for each
/// other. With rows of 32 i + 32 / DEPTH words, thread (o, d) meets bank d * 32 / DEPTH + o: no two
/// meet. (f64: the same in 16 banks of 8 bytes, for half a warp at a time.)
template <class T, int DEPTH>
constexpr int padding = 128 / static_cast<int>(sizeof(T)) / DEPTH;

/// Copies the tile of x that begins at (outer, depth) into shared memory, as tile[depth][outer],
/// with zeros beyond the ends of x. Neighbouring threads read neighbouring addresses, whichever way
/// x lies. To be called by all threads of the block, with a barrier before and after.
template <int OUTER, int THREADS, class T, int DEPTH, int ROW>
__device__ __forceinline__ void load_tile(const Operand<T>& x, std::int64_t outer,
                                          std::int64_t depth, T (&tile)[DEPTH][ROW]) {
  static_assert(DEPTH * OUTER % THREADS == 0 && ROW >= OUTER);
#pragma unroll
  for (int i = 0; i < DEPTH * OUTER / THREADS; ++i) {
    const int element = i * THREADS + static_cast<int>(threadIdx.x);
    const int o = x.depth_contiguous ? element / DEPTH : element % OUTER;
    const int d = x.depth_contiguous ? element % DEPTH : element / OUTER;
    tile[d][o] = x.contains(outer + o, depth + d) ? *x.address(outer + o, depth + d) : T(0);
  }
}

}  // namespace lockstep::kernels::cuda
