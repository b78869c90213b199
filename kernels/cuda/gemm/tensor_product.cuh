#pragma once
/// What rungs 9 and 10 have in common: everything but the type of their numbers. A block of 4 warps
/// computes a square of c, each warp a quarter of it, on tensor cores.
///
/// A tensor core multiplies matrices of 16 x K and K x 8 that are spread over the registers of a
/// warp (mma in device_intrinsics.h). So a warp's 64 x 64 results are 4 x 8 such products per step
/// of K, whose operands it reads from the tiles in shared memory once:
///
///                  8 8 8 8 8 8 8 8
///                 +-+-+-+-+-+-+-+-+  K
///                 +-+-+-+-+-+-+-+-+
///      16 | K |   | | | | | | | | |       64 * K + K * 64 numbers are read
///      16 |   |   | | | | | | | | |       for 64 * 64 * K products
///      16 |   |   | | | | | | | | |
///      16 |   |   | | | | | | | | |       The 64 x 64 sums are 128 registers a thread.
///
/// The ring of tiles and its copies are those of rung 8.

#include "lockstep/kernels/cuda/common.cuh"
#include "lockstep/kernels/cuda/gemm/operand.cuh"
#include "lockstep/kernels/cuda/gemm/quads.cuh"
#include "lockstep/kernels/cuda/gemm/slices.cuh"
#include "lockstep/kernels/cuda/gemm/tile_copier.cuh"

namespace lockstep::kernels::cuda {

/// A Core is the instruction: `Element`, the depth K of one instruction, and
///   read<DEPTH_CONTIGUOUS, ROW>(fragment, tile, outer, depth): this thread's part of the 16 x K
///     elements of a tile that begin at (outer, depth), in four registers, in this order:
///       [0] outer 0..7, lower half of K    [1] outer 8..15, lower half
///       [2] outer 0..7, upper half         [3] outer 8..15, upper half
///     which is what `a` wants, and for `b` two operands at once: {0, 2} and {1, 3};
///   multiply(sum, a, b): sum (16, 8) += a b;
///   ONES: a register of b whose elements are 1.
///
/// WARP x WARP results per warp. A, B: what the factors lie in memory as, and in their tiles; if it
/// is not Element, it is float, and Core::read() rounds.
template <class Core_, int WARP_, class A_ = typename Core_::Element,
          class B_ = typename Core_::Element>
struct TensorTiling {
  using Core = Core_;
  using Element = typename Core::Element;
  using A = A_;
  using B = B_;
  static constexpr int WARP = WARP_, ROWS = 2 * WARP, COLUMNS = ROWS, THREADS = 128;
  static constexpr int DEPTH = 2 * Core::DEPTH;  // per step: 64 bytes
  static constexpr int STAGES = 4;
  template <class X>
  using Copier =
      TileCopier<X, ROWS, DEPTH, THREADS,
                 std::is_same_v<X, Element> ? TileOrder::as_stored : TileOrder::for_pairs>;
  using CopierA = Copier<A>;
  using CopierB = Copier<B>;
  static constexpr std::size_t SHARED_BYTES =
      STAGES * (CopierA::SIZE * sizeof(A) + CopierB::SIZE * sizeof(B));
};

/// A thread's operands for one instruction's depth.
template <class Tile, bool A_DEPTH_CONTIGUOUS, bool B_DEPTH_CONTIGUOUS>
struct TensorFragments {
  static constexpr int COUNT = Tile::WARP / 16;
  std::uint32_t a[COUNT][4], b[COUNT][4];

  /// `row` and `column`: where the warp's results begin in the block's.
  __device__ __forceinline__ void read(const typename Tile::A* a_tile, int row,
                                       const typename Tile::B* b_tile, int column, int depth) {
    using Core = typename Tile::Core;
    constexpr int ROW_A = Tile::CopierA::template ROW<A_DEPTH_CONTIGUOUS>;
    constexpr int ROW_B = Tile::CopierB::template ROW<B_DEPTH_CONTIGUOUS>;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      Core::template read<A_DEPTH_CONTIGUOUS, ROW_A, true>(a[i], a_tile, row + i * 16, depth);
      Core::template read<B_DEPTH_CONTIGUOUS, ROW_B, false>(b[i], b_tile, column + i * 16, depth);
    }
  }
};

/// Where a block's tile lies. Blocks that run together should share operands in the second-level
/// cache: they fill a band of 8 rows of tiles from left to right, each column downwards.
template <class Tile, class T, class C>
__device__ __forceinline__ TileOrigin banded_origin(const GemmProblem<T, C>& p) {
  constexpr int BAND = 8;
  const std::int64_t down = tiles(p.m, Tile::ROWS), across = tiles(p.n, Tile::COLUMNS);
  const std::int64_t band = blockIdx.x / (BAND * across), place = blockIdx.x % (BAND * across);
  const std::int64_t below = down - band * BAND, rows = below < BAND ? below : BAND;
  return {(band * BAND + place % rows) * Tile::ROWS, place / rows * Tile::COLUMNS};
}

/// Stores a thread's part of two products of 16 x 8 that lie side by side, the left one at (row,
/// column). mma leaves each thread pairs of neighbours, 4 bytes where results have 16 bits: half a
/// sector of memory per row. So threads 2 i and 2 i + 1 exchange a pair, and have four neighbours
/// each:
///
///     thread      0       1       2       3
///     has      l0 r0   l1 r1   l2 r2   l3 r3       l0: its pair of the left product, and so on
///     stores   l0 l1   r0 r1   l2 l3   r2 r3
///
/// To be called by all threads of the warp. `quads` is aligned_results(p).
template <class T, class C>
__device__ __forceinline__ void store_products(const GemmProblem<T, C>& p, std::int64_t row,
                                               std::int64_t column, const float (&left)[4],
                                               const float (&right)[4], bool quads) {
  const int lane = static_cast<int>(threadIdx.x) % 32;  // places of sums: device_intrinsics.h
  const bool odd = lane % 2 != 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float l[2] = {left[half * 2], left[half * 2 + 1]};
    const float r[2] = {right[half * 2], right[half * 2 + 1]};
    const float x = __shfl_xor_sync(all_lanes, odd ? l[0] : r[0], 1);
    const float y = __shfl_xor_sync(all_lanes, odd ? l[1] : r[1], 1);
    const float sum[4] = {odd ? x : l[0], odd ? y : l[1], odd ? r[0] : x, odd ? r[1] : y};
    store_quad(p, row + half * 8 + lane / 4, column + odd * 8 + lane % 4 / 2 * 4, sum, quads);
  }
}

/// The factor that lies in memory as X: T, or float.
template <class X, class T>
__device__ __forceinline__ const X* factor_as(const T* factor, const float* in_f32) {
  if constexpr (std::is_same_v<X, T>)
    return factor;
  else
    return in_f32;
}

/// The kernel of one block. blockIdx.x: the tile; blockIdx.y: the slice of K, which meets the
/// others in the cluster, or whose sums go to the y-th matrix in p.c.
template <class Tile, bool A_DEPTH_CONTIGUOUS, bool B_DEPTH_CONTIGUOUS, class C>
__device__ __forceinline__ void tensor_product(GemmProblem<typename Tile::Element, C> p,
                                               const Access& access) {
  using Core = typename Tile::Core;
  using A = typename Tile::A;
  using B = typename Tile::B;
  using CopierA = typename Tile::CopierA;
  using CopierB = typename Tile::CopierB;
  constexpr int STAGES = Tile::STAGES, WARP = Tile::WARP;
  A* const a_tiles = dynamic_shared<A>();
  B* const b_tiles = reinterpret_cast<B*>(a_tiles + STAGES * CopierA::SIZE);

  const auto [row0, column0] = banded_origin<Tile>(p);
  const std::int64_t depth0 = blockIdx.y * access.slice_depth, left = p.k - depth0;
  const std::int64_t depth = left < access.slice_depth ? left : access.slice_depth;
  const int steps = static_cast<int>(tiles(depth, Tile::DEPTH));
  CopierA a({factor_as<A>(p.a, p.a_f32), p.m, p.k, A_DEPTH_CONTIGUOUS}, row0, depth0, access.a);
  CopierB b({factor_as<B>(p.b, p.b_f32), p.n, p.k, B_DEPTH_CONTIGUOUS}, column0, depth0, access.b);
  const auto start = [&](int step) {
    if (step < steps) {
      const std::int64_t depth_left = depth - step * std::int64_t{Tile::DEPTH};
      a.start(a_tiles + step % STAGES * CopierA::SIZE, depth_left);
      b.start(b_tiles + step % STAGES * CopierB::SIZE, depth_left);
    }
    cp_async_commit();
  };

  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int row = warp / 2 * WARP, column = warp % 2 * WARP;
  // The sums of op(a)'s rows are one more product, with a matrix of ones. One warp of those with
  // the same rows makes it.
  const bool sums_rows = !A_DEPTH_CONTIGUOUS && p.row_sums && column0 + column == 0;
  float row_sum[WARP / 16][4] = {};
  float sum[WARP / 16][WARP / 8][4] = {};
#pragma unroll 1
  for (int step = 0; step < STAGES - 1; ++step) start(step);
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    cp_async_wait<STAGES - 2>();
    __syncthreads();  // this step's tile is there; no thread reads the last one any more
    start(step + STAGES - 1);
    const A* a_tile = a_tiles + step % STAGES * CopierA::SIZE;
    const B* b_tile = b_tiles + step % STAGES * CopierB::SIZE;
    TensorFragments<Tile, A_DEPTH_CONTIGUOUS, B_DEPTH_CONTIGUOUS> fragments[2];
    fragments[0].read(a_tile, row, b_tile, column, 0);
#pragma unroll
    for (int d = 0; d < Tile::DEPTH / Core::DEPTH; ++d) {
      if (d + 1 < Tile::DEPTH / Core::DEPTH)
        fragments[(d + 1) % 2].read(a_tile, row, b_tile, column, (d + 1) * Core::DEPTH);
      const auto& now = fragments[d % 2];
#pragma unroll
      for (int i = 0; i < WARP / 16; ++i)
#pragma unroll
        for (int j = 0; j < WARP / 8; ++j)
          Core::multiply(sum[i][j], now.a[i],
                         {now.b[j / 2][j % 2 * 2], now.b[j / 2][j % 2 * 2 + 1]});
      if (sums_rows)
#pragma unroll
        for (int i = 0; i < WARP / 16; ++i)
          Core::multiply(row_sum[i], now.a[i], {Core::ONES, Core::ONES});
    }
  }
  cp_async_wait<0>();

  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (access.in_cluster)
    return meet_in_cluster<Tile>(p, row0, column0, access.c, [&](auto& sums) {
#pragma unroll
      for (int i = 0; i < WARP / 16; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {  // places of sums: device_intrinsics.h
          const int r = row + i * 16 + half * 8 + lane / 4;
          if (sums_rows && lane % 4 == 0) sums.rows[r] = row_sum[i][half * 2];
#pragma unroll
          for (int j = 0; j < WARP / 8; ++j)
            *reinterpret_cast<float2*>(&sums.tile[r][column + j * 8 + lane % 4 * 2]) =
                make_float2(sum[i][j][half * 2], sum[i][j][half * 2 + 1]);
        }
    });
  take_slice(p);
  if (sums_rows && lane % 4 == 0)
#pragma unroll
    for (int i = 0; i < WARP / 16; ++i) {
      store_row_sum(p, row0 + row + i * 16 + lane / 4, row_sum[i][0]);
      store_row_sum(p, row0 + row + i * 16 + lane / 4 + 8, row_sum[i][2]);
    }
#pragma unroll
  for (int i = 0; i < WARP / 16; ++i)
#pragma unroll
    for (int j = 0; j < WARP / 8; j += 2)
      store_products(p, row0 + row + i * 16, column0 + column + j * 8, sum[i][j], sum[i][j + 1],
                     access.c);
}

/// Calls f with two std::bool_constant: whether `a` and `b` are contiguous along the depth.
template <class T, class C, class F>
void with_orders(const GemmProblem<T, C>& p, F&& f) {
  const auto with_b = [&](auto a) {
    if (p.transpose_b)
      f(a, std::true_type{});
    else
      f(a, std::false_type{});
  };
  if (p.transpose_a)
    with_b(std::false_type{});
  else
    with_b(std::true_type{});
}

}  // namespace lockstep::kernels::cuda
