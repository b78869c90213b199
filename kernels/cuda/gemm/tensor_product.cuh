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
#include "lockstep/kernels/cuda/gemm/tile_copier.cuh"

namespace lockstep::kernels::cuda {

/// A Core is the instruction: `Element`, the depth K of one instruction, and
///   read<DEPTH_CONTIGUOUS, ROW>(fragment, tile, outer, depth): this thread's part of the 16 x K
///     elements of a tile that begin at (outer, depth), in four registers, in this order:
///       [0] outer 0..7, lower half of K    [1] outer 8..15, lower half
///       [2] outer 0..7, upper half         [3] outer 8..15, upper half
///     which is what `a` wants, and for `b` two operands at once: {0, 2} and {1, 3};
///   multiply(sum, a, b): sum (16, 8) += a b.
///
/// WARP x WARP results per warp.
template <class Core_, int WARP_>
struct TensorTiling {
  using Core = Core_;
  using Element = typename Core::Element;
  static constexpr int WARP = WARP_, TILE = 2 * WARP, THREADS = 128;
  static constexpr int DEPTH = 2 * Core::DEPTH;  // per step: 64 bytes
  static constexpr int STAGES = 4;
  using Copier = TileCopier<Element, TILE, DEPTH, THREADS, TileOrder::as_stored>;
  static constexpr std::size_t SHARED_BYTES = 2 * STAGES * Copier::SIZE * sizeof(Element);
};

/// What of the problem can be accessed by 16 bytes (a, b), and c by two elements.
struct TensorAccess {
  bool a, b, c;
};

/// A thread's operands for one instruction's depth.
template <class Tile, bool A_DEPTH_CONTIGUOUS, bool B_DEPTH_CONTIGUOUS>
struct TensorFragments {
  static constexpr int COUNT = Tile::WARP / 16;
  std::uint32_t a[COUNT][4], b[COUNT][4];

  /// `row` and `column`: where the warp's results begin in the block's.
  __device__ __forceinline__ void read(const typename Tile::Element* a_tile, int row,
                                       const typename Tile::Element* b_tile, int column,
                                       int depth) {
    using Core = typename Tile::Core;
    constexpr int ROW_A = Tile::Copier::template ROW<A_DEPTH_CONTIGUOUS>;
    constexpr int ROW_B = Tile::Copier::template ROW<B_DEPTH_CONTIGUOUS>;
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
  const std::int64_t down = tiles(p.m, Tile::TILE), across = tiles(p.n, Tile::TILE);
  const std::int64_t band = blockIdx.x / (BAND * across), place = blockIdx.x % (BAND * across);
  const std::int64_t below = down - band * BAND, rows = below < BAND ? below : BAND;
  return {(band * BAND + place % rows) * Tile::TILE, place / rows * Tile::TILE};
}

/// True if c, and the bias, can be accessed by pairs of elements.
template <class T, class C>
bool aligned_pairs(const GemmProblem<T, C>& p) {
  return is_aligned<2>(p.c) && is_aligned<2>(p.bias) && p.n % 2 == 0;
}

/// Finishes the results at (row, column) and to its right. `paired` requires aligned_pairs(p) and
/// an even column.
template <class T, class C>
__device__ __forceinline__ void store_pair(const GemmProblem<T, C>& p, std::int64_t row,
                                           std::int64_t column, float x, float y, bool paired) {
  if (!paired) {
    store(p, row, column, x);
    store(p, row, column + 1, y);
    return;
  }
  if (row >= p.m || column >= p.n) return;
  C* c = p.c + row * p.n + column;
  const auto add = [&](const Pack<C, 2>& pair) {
    x += convert<float>(pair[0]);
    y += convert<float>(pair[1]);
  };
  if (p.bias) add(load_pack<2>(p.bias + column));
  if (p.accumulate) add(load_pack<2>(c));
  Pack<C, 2> pair;
  pair[0] = convert<C>(x);
  pair[1] = convert<C>(y);
  store_pack(c, pair);
}

/// The kernel of one block.
template <class Tile, bool A_DEPTH_CONTIGUOUS, bool B_DEPTH_CONTIGUOUS, class C>
__device__ __forceinline__ void tensor_product(const GemmProblem<typename Tile::Element, C>& p,
                                               const TensorAccess& access) {
  using Core = typename Tile::Core;
  using Element = typename Tile::Element;
  using Copier = typename Tile::Copier;
  constexpr int STAGES = Tile::STAGES, WARP = Tile::WARP;
  Element* const a_tiles = dynamic_shared<Element>();
  Element* const b_tiles = a_tiles + STAGES * Copier::SIZE;

  const auto [row0, column0] = banded_origin<Tile>(p);
  const int steps = static_cast<int>(tiles(p.k, Tile::DEPTH));
  Copier a({p.a, p.m, p.k, A_DEPTH_CONTIGUOUS}, row0, 0, access.a);
  Copier b({p.b, p.n, p.k, B_DEPTH_CONTIGUOUS}, column0, 0, access.b);
  const auto start = [&](int step) {
    if (step < steps) {
      const std::int64_t depth_left = p.k - step * std::int64_t{Tile::DEPTH};
      a.start(a_tiles + step % STAGES * Copier::SIZE, depth_left);
      b.start(b_tiles + step % STAGES * Copier::SIZE, depth_left);
    }
    cp_async_commit();
  };

  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int row = warp / 2 * WARP, column = warp % 2 * WARP;
  float sum[WARP / 16][WARP / 8][4] = {};
#pragma unroll 1
  for (int step = 0; step < STAGES - 1; ++step) start(step);
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    cp_async_wait<STAGES - 2>();
    __syncthreads();  // this step's tile is there; no thread reads the last one any more
    start(step + STAGES - 1);
    const Element* a_tile = a_tiles + step % STAGES * Copier::SIZE;
    const Element* b_tile = b_tiles + step % STAGES * Copier::SIZE;
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
    }
  }
  cp_async_wait<0>();

  const int lane = static_cast<int>(threadIdx.x) % 32;  // places of sums: device_intrinsics.h
#pragma unroll
  for (int i = 0; i < WARP / 16; ++i)
#pragma unroll
    for (int j = 0; j < WARP / 8; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        store_pair(p, row0 + row + i * 16 + half * 8 + lane / 4,
                   column0 + column + j * 8 + lane % 4 * 2, sum[i][j][half * 2],
                   sum[i][j][half * 2 + 1], access.c);
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
