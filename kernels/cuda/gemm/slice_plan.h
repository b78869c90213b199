#pragma once
/// Which tiles, and how many slices of K, a product on rungs 8 to 10 is cut into: a pure function
/// of the sizes, so that the order of a sum, and with it its bits, is the same on every GPU.
/// slices.cuh says what slices are. hopper/plan.h is the same for rungs 11 and 12.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "lockstep/kernels/cuda/divide_up.h"

namespace lockstep::kernels::cuda {

/// How K is cut: `count` slices of `depth`; the last one may be shorter, but is never empty.
struct Slices {
  std::int64_t depth;
  int count;
};

/// `wanted` slices, or fewer where these would be shorter than `shortest`; at least one. All depths
/// but the last are multiples of `step`.
constexpr Slices cut_depth(std::int64_t k, std::int64_t wanted, int step, int shortest) {
  const std::int64_t most = std::max<std::int64_t>(1, std::min(wanted, k / shortest));
  const std::int64_t depth = divide_up(divide_up(k, step), most) * step;
  return {depth, static_cast<int>(divide_up(k, depth))};
}
static_assert(cut_depth(1000, 4, 16, 128).depth == 256 && cut_depth(1000, 4, 16, 128).count == 4);
static_assert(cut_depth(100, 4, 16, 128).count == 1 && cut_depth(300, 9, 16, 128).count == 2);

/// A plan for a product: which of a rung's sizes of tiles, and how many slices of K are wanted
/// (cut_depth makes fewer of them where these would be too short).
struct Plan {
  int tile;
  int slices;

  bool operator==(const Plan&) const = default;
};

/// A slice has at least so many steps: they fill the ring of tiles.
inline constexpr int shortest_slice = 4;

/// So many slices meet in a cluster: GPUs that have clusters have them of 8 blocks (has_clusters()
/// asks: a part of a GPU may have no room).
inline constexpr int most_in_cluster = 8;

/// The sums of all slices have at most so many elements: 256 MiB of scratch memory. More slices
/// would be faster for some products of many results and a very long K.
inline constexpr std::int64_t most_slice_sums = std::int64_t{1} << 26;

/// An H100 or H200, in the cycles of a multiprocessor's clock, as plans see it: a constant. Were a
/// plan to ask the device, another device would add up in another order.
struct H100 {
  static constexpr std::int64_t processors = 132;
  static constexpr std::int64_t memory_bytes = 1900;    ///< per cycle, read or written
  static constexpr std::int64_t further_kernel = 3000;  ///< cycles of one more kernel
  /// Per cycle, by a multiprocessor from the shared memory of others in its cluster, and the cycles
  /// of the barriers round that. Assumed, not timed: some 3.3 TB/s of all, and 200 cycles each way.
  static constexpr std::int64_t neighbour_bytes = 14;
  static constexpr std::int64_t meeting = 700;

  /// Multiprocessors that clusters of so many blocks can use, one block each. A cluster lies within
  /// one of the 8 parts of the GPU (GPCs); assumed: six have 16 multiprocessors, two have 18.
  static constexpr std::int64_t processors_for(std::int64_t cluster) {
    return cluster * (6 * (16 / cluster) + 2 * (18 / cluster));
  }
};
static_assert(H100::processors_for(1) == H100::processors && H100::processors_for(6) == 108);

/// An (m, n) matrix of results whose K is cut into `slices`, computed in `tiles` of `tile_results`.
struct Folding {
  std::int64_t m, n, slices, tiles, tile_results;

  /// The cycles that it takes to write the sums of the slices, and to add them up by a second
  /// kernel. They go out to memory, or to the cache in front of it, and come back.
  constexpr std::int64_t by_kernel() const {
    return H100::further_kernel + (2 * slices + 1) * m * n * 4 / H100::memory_bytes;
  }
  /// Those of the blocks of a cluster, each of which reads what it adds up of the others.
  constexpr std::int64_t in_cluster() const {
    const std::int64_t each = divide_up(tiles * slices, H100::processors_for(slices));
    const std::int64_t others = tile_results * 4 * (slices - 1) / slices;
    return H100::meeting + each * others / H100::neighbour_bytes;
  }
  /// Where both can be done: whether the slices should meet in a cluster. The bits are the same.
  constexpr bool prefers_cluster() const {
    return slices > 1 && slices <= most_in_cluster && in_cluster() <= by_kernel();
  }
  constexpr std::int64_t cycles() const {
    return slices == 1 ? 0 : prefers_cluster() ? in_cluster() : by_kernel();
  }
};

/// A size of tiles that a rung has, and how fast it is: blocks of ROWS x COLUMNS results that go
/// `depth` down K per step, `resident` of them on a multiprocessor at a time. A step takes `alone`
/// cycles where a block has the multiprocessor to itself: that is latency. Where several share it,
/// they take `beside` each.
struct TileSpeed {
  int rows, columns, depth, resident;
  int alone, beside;
};

/// An estimate of the cycles that a product takes: rounds of blocks that fill the multiprocessors,
/// and a last round that does not. Each round has its first copies and its stores to wait for.
constexpr std::int64_t estimated_cycles(std::int64_t m, std::int64_t n, const TileSpeed& tile,
                                        const Slices& slices) {
  constexpr std::int64_t ends_of_round = 1500;
  const std::int64_t tiles = divide_up(m, tile.rows) * divide_up(n, tile.columns);
  const Folding folding{m, n, slices.count, tiles, tile.rows * tile.columns};
  const std::int64_t cluster = folding.prefers_cluster() ? slices.count : 1;
  const std::int64_t each = divide_up(tiles * slices.count, H100::processors_for(cluster));
  const std::int64_t steps = divide_up(slices.depth, tile.depth);
  const auto round = [&](std::int64_t together) {
    const std::int64_t step = std::max<std::int64_t>(tile.alone, together * tile.beside);
    return together == 0 ? 0 : steps * step + ends_of_round;
  };
  return each / tile.resident * round(tile.resident) + round(each % tile.resident) +
         folding.cycles();
}

/// A plan and what it is estimated to take.
struct Estimate {
  Plan plan;
  std::int64_t cycles;
};

/// The fastest plan by that estimate; of equals the first.
template <std::size_t N>
constexpr Estimate plan_product(std::int64_t m, std::int64_t n, std::int64_t k,
                                const TileSpeed (&speeds)[N]) {
  Estimate best{{0, 1}, std::numeric_limits<std::int64_t>::max()};
  for (std::size_t i = 0; i < N; ++i) {
    const int shortest = shortest_slice * speeds[i].depth;
    for (const int wanted : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64}) {
      const Slices slices = cut_depth(k, wanted, speeds[i].depth, shortest);
      if (wanted > 1 && slices.count * m * n > most_slice_sums) break;
      const std::int64_t cycles = estimated_cycles(m, n, speeds[i], slices);
      if (cycles < best.cycles) best = {{static_cast<int>(i), wanted}, cycles};
      if (wanted > k / shortest) break;  // K has no room for more
    }
  }
  return best;
}

/// Tiles of rung 8, from times on an H200 (docs/benchmarks.md). Small ones are for narrow products:
/// they have the most blocks, and the most reads per product.
inline constexpr TileSpeed double_buffered_speeds[] = {
    {128, 128, 8, 2, 1900, 1400}, {64, 64, 8, 4, 900, 420}, {32, 32, 16, 8, 700, 230}};
/// Tiles of rungs 9 and 10, from such times. Registers and shared memory allow two blocks on a
/// multiprocessor where a warp has 64 x 64 results, and four where it has 32 x 32.
inline constexpr TileSpeed tensor_tf32_speeds[] = {{128, 128, 16, 2, 1200, 910},
                                                   {64, 64, 16, 4, 560, 350}};
inline constexpr TileSpeed tensor_16_speeds[] = {{128, 128, 32, 2, 1000, 720},
                                                 {64, 64, 32, 4, 480, 300}};
/// Those of rung 10 for factors of f32: an estimate. Their tiles take twice the shared memory, and
/// it takes 384 cycles to write a pair of them, and to read it by pairs of numbers.
inline constexpr TileSpeed rounding_speeds[] = {{64, 64, 32, 2, 480, 400}};

/// Whether a product of 16-bit numbers takes factors that lie in memory as f32, and rounds them on
/// their way; else they are rounded by casts before. The same for all three products of a layer,
/// x w^T, dz w and dz^T x, whose sizes are the same three numbers.
///
/// A cast costs H100::further_kernel, 3000 cycles. A layer has three factors: without casts it
/// saves 9000, or 3000 where the layers around it have rounded x and dz. A product pays for it with
/// bytes and with its small tiles, in cycles per m n k, if there is work for all multiprocessors:
///
///   1 / 93000   if both factors are f32: m n k / 64 numbers of each are read from the second-level
///               cache, 2 bytes more each, at 5800 bytes per cycle
///   1 / 56000   64 x 64 x 32 products take 400 cycles of one of 132 multiprocessors, where the
///               tiles of rung 11 take about a quarter of it
///
/// So with three factors it pays up to m n k = 1.0e8, which is 9000 / 3 / (1 / 93000 + 1 / 56000),
/// and with w alone, which two products read, up to 6.5e7. The limit is 2^26 = 6.7e7. An estimate:
/// nothing of it was timed.
constexpr bool rounds_on_the_way(std::int64_t m, std::int64_t n, std::int64_t k) {
  return m * n * k <= std::int64_t{1} << 26;
}

}  // namespace lockstep::kernels::cuda
