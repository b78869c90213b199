#pragma once
/// What the kernel of rungs 11 and 12 has in shared memory, how its blocks share c, and how its
/// element types are written. hopper/product.cuh is the kernel.

#include <cudaTypedefs.h>

#include "lockstep/kernels/cuda/gemm/cluster_fold.cuh"
#include "lockstep/kernels/cuda/gemm/hopper/panels.cuh"
#include "lockstep/kernels/cuda/gemm/hopper/plan.h"

namespace lockstep::kernels::cuda {
namespace {

namespace hw = ::hopper;

/// A HopperShape as constants of the kernel.
template <HopperTile tile>
struct HopperTiling {
  static constexpr HopperShape shape = hopper_shape(tile);
  static constexpr int ROWS = shape.rows, COLUMNS = shape.columns;  ///< of c, per block
  static constexpr int CLUSTER = shape.cluster, STAGES = shape.stages, BLOCKS = shape.blocks;
  static constexpr int CONSUMERS = ROWS / hw::PANEL_ROWS;  ///< warpgroups that multiply; one copies
  static constexpr int CONSUMER_WARPS = CONSUMERS * 4;
  static constexpr int THREADS = (1 + CONSUMERS) * 128;
  static constexpr int PANELS_A = ROWS / hw::PANEL_ROWS, PANELS_B = COLUMNS / hw::PANEL_ROWS;
  /// A wide tile's sums alone are 128 registers, and 65536 for 384 threads are 168 each: there the
  /// producer gives some of its own away. 168 * 384 = 40 * 128 + 232 * 256.
  static constexpr bool MOVES_REGISTERS = COLUMNS == 256;
  static constexpr int PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 232;
  static_assert(ROWS % hw::PANEL_ROWS == 0 && PANELS_B % CLUSTER == 0);
};

/// How an element type is written: two neighbours in a row of c at a time.
template <class T>
struct Element;

template <>
struct Element<__nv_bfloat16> {
  using Pair = __nv_bfloat162;
  static constexpr CUtensorMapDataType map_type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  static __device__ Pair pair(float2 x) { return __float22bfloat162_rn(x); }
  static __device__ float2 floats(Pair x) { return __bfloat1622float2(x); }
};

template <>
struct Element<__half> {
  using Pair = __half2;
  static constexpr CUtensorMapDataType map_type = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  static __device__ Pair pair(float2 x) { return __float22half2_rn(x); }
  static __device__ float2 floats(Pair x) { return __half22float2(x); }
};

template <>
struct Element<float> {
  using Pair = float2;
  static constexpr CUtensorMapDataType map_type = CU_TENSOR_MAP_DATA_TYPE_TFLOAT32;
  static __device__ Pair pair(float2 x) { return x; }
  static __device__ float2 floats(Pair x) { return x; }
};

/// One stage of the ring: 128 bytes of k for a tile of A and a tile of B.
template <class Tile>
struct Stage {
  unsigned char a[Tile::PANELS_A][hw::PANEL_BYTES];
  unsigned char b[Tile::PANELS_B][hw::PANEL_BYTES];
};

/// 16 rows of c, 128 bytes each, on their way out of one warp. Rows are padded by 8 elements: then
/// the pairs that a warp writes at a time, 8 rows by 4 neighbours, lie in different banks.
template <class C>
struct Patch {
  static constexpr int COLUMNS = 128 / sizeof(C);
  alignas(16) C rows[16][COLUMNS + 8];
};

/// Where operands arrive, and are read. Sums of slices lie there when all have been read.
template <class Tile>
struct Ring {
  Stage<Tile> stages[Tile::STAGES];  ///< at a multiple of 1024, see hopper/panels.cuh
  hw::Barrier full[Tile::STAGES];    ///< phase i complete: the copies of round i have arrived
  hw::Barrier empty[Tile::STAGES];   ///< phase i complete: all have read what round i brought
};

/// C: the elements of c.
template <class Tile, class C>
struct Shared {
  Ring<Tile> ring;
  Patch<C> patches[Tile::CONSUMER_WARPS];
  alignas(16) float bias[Tile::CONSUMER_WARPS][Tile::COLUMNS];
};

template <class Tile>
using TileSums = ClusterSums<Tile::ROWS, Tile::COLUMNS>;

/// With what it takes to move the beginning to a multiple of 1024.
template <class Tile, class C>
constexpr std::size_t shared_bytes = sizeof(Shared<Tile, C>) + 1024;

/// A multiprocessor of a Hopper has 228 KiB, of which each block takes 1 KiB for itself.
template <class Tile>
constexpr bool fits = Tile::BLOCKS*(shared_bytes<Tile, float> + 1024) <= 228 << 10;
static_assert(fits<HopperTiling<HopperTile::wide>> && fits<HopperTiling<HopperTile::square>> &&
              fits<HopperTiling<HopperTile::flat>> && fits<HopperTiling<HopperTile::small>>);

template <class Tile>
constexpr bool sums_fit = sizeof(TileSums<Tile>) <= sizeof(Stage<Tile>[Tile::STAGES]);
static_assert(sums_fit<HopperTiling<HopperTile::wide>> &&
              sums_fit<HopperTiling<HopperTile::square>> &&
              sums_fit<HopperTiling<HopperTile::flat>> &&
              sums_fit<HopperTiling<HopperTile::small>>);

template <class Tile, class C>
__device__ Shared<Tile, C>& shared_memory() {
  auto* bytes = dynamic_shared<unsigned char>();
  return *reinterpret_cast<Shared<Tile, C>*>(bytes + (1024 - shared_address(bytes) % 1024) % 1024);
}

/// A place in the ring. Producer and consumers walk it in step, each with its own place.
template <int stages>
struct RingPlace {
  int stage = 0;
  std::uint32_t parity = 0;  ///< of the round

  __device__ void advance() {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

/// How large the product is. The sum over k is cut into `slices` of `slice_k_blocks` blocks (of 128
/// bytes; the last slice may have fewer).
struct Extent {
  int m, n;
  int k_blocks, slices, slice_k_blocks;
};

/// Where results go, and what the epilogue reads (GemmProblem). n is a multiple of 16 bytes, and
/// matrices begin at one.
template <class C>
struct Output {
  GemmProblem<C> problem;  ///< without its factors
  bool quads;              ///< aligned_results(problem)
  Extent extent;
};

/// A block's place in its cluster. Of each slice of a tile there are Tile::CLUSTER blocks.
struct ClusterPlace {
  int slice, member;
  int blocks;  ///< of the cluster
};

/// A part of the work: a block's tile of c, and the blocks of k to be summed up.
struct Work {
  int row, column;  ///< the first ones of the block's tile
  int first_k_block, end_k_block;
};

/// The order of the work. A cluster's tile is CLUSTER * ROWS x COLUMNS: rows for each of its
/// blocks. 8 of them make a band; tiles are numbered down the columns of a band, band after band.
/// So the clusters that work at a time read about as many rows of A as columns of B: the fewest
/// bytes for so many tiles, and most of them from the L2 cache. The slices of a tile share a
/// cluster.
template <class Tile>
struct Schedule {
  static constexpr int BAND = 8, HEIGHT = Tile::CLUSTER * Tile::ROWS;
  Extent extent;
  int rows, columns;

  __host__ __device__ explicit Schedule(const Extent& e)
      : extent(e), rows((e.m - 1) / HEIGHT + 1), columns((e.n - 1) / Tile::COLUMNS + 1) {}
  __host__ __device__ int count() const { return rows * columns; }

  /// The i-th tile's part for a block.
  __device__ Work work(int i, const ClusterPlace& place) const {
    const int first = i / (BAND * columns) * BAND;
    const int in_band = min(BAND, rows - first);
    const int within = i % (BAND * columns);
    const int row = (first + within % in_band) * Tile::CLUSTER + place.member;
    const int begin = place.slice * extent.slice_k_blocks;
    return {row * Tile::ROWS, within / in_band * Tile::COLUMNS, begin,
            min(begin + extent.slice_k_blocks, extent.k_blocks)};
  }
};

}  // namespace
}  // namespace lockstep::kernels::cuda
