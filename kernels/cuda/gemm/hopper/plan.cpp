/// The choice of tiles and slices for rungs 11 and 12.
///
/// The time of a candidate is estimated for an H100, in clock cycles of a multiprocessor (1755 of
/// them are a microsecond; its constants are also in slice_plan.h):
///
///   rounds x (blocks of k x cycles per block + end of a tile), or the bytes / 1900 per cycle
///
///   rounds            how many tiles the busiest multiprocessor computes, of those that clusters
///                     can use; two blocks that share one overlap the end of one tile with the
///                     other's products
///   cycles per block  (128 bytes of k) the largest of what the tensor cores take, 1024 for 128 x
///                     256; what shared memory takes, 128 bytes per cycle, into which a tile of A
///                     and one of B are copied, and from which each warpgroup reads its 64 rows of
///                     A and all of B; and what the second-level cache gives: 64 bytes per cycle
///                     to one multiprocessor, 5800 to all. A cluster reads a tile of B once
///   end of a tile     600, and 32 bytes of results per cycle
///
///               tensor cores   shared   bytes      all 132 busy   alone     end (16 bit, f32)
///   wide           1024         1024    32 KiB         1024        1024       2648   4696
///   square          512          640    24 KiB          640         640       1624   2648
///   flat            256          384    16 KiB          384         384       1112   1624
///   small           128          256    16 KiB          373         256        856   1112
///
/// Slices cost what their cluster takes to add them up (Folding, in slice_plan.h). Matrices that
/// must be turned over cost a kernel, and their way to memory and back.
///
/// What a launch costs, and the speed of the kernel that turns matrices over, are from times on an
/// H100 that no document holds.

#include "lockstep/kernels/cuda/gemm/hopper/plan.h"

#include <algorithm>
#include <initializer_list>
#include <limits>

#include "lockstep/kernels/cuda/divide_up.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr std::int64_t cache_bytes = 5800;   ///< per cycle, of the second-level cache
constexpr std::int64_t port_bytes = 64;      ///< per cycle, from there to one multiprocessor
constexpr std::int64_t hopper_start = 5000;  ///< until products run, with the kernel's launch
constexpr std::int64_t twin_start = 4200;    ///< the same for rungs 9 and 10
constexpr std::int64_t turned_bytes = 1350;  ///< per cycle, by the kernel that turns a matrix
constexpr std::int64_t row_bytes = 128;      ///< of k, in one stage of the ring

/// Blocks of k, in stages of the ring.
std::int64_t blocks_of_k(const HopperSizes& s) { return divide_up(s.k * s.bytes, row_bytes); }

/// What must pass through memory at least.
std::int64_t memory_cycles(const HopperSizes& s) {
  return ((s.m + s.n) * s.k * s.bytes + s.m * s.n * s.result_bytes) / H100::memory_bytes;
}

/// Per block of k, for one of `active` blocks that run at a time.
std::int64_t block_cycles(const HopperShape& shape, std::int64_t active) {
  const std::int64_t products = std::int64_t{shape.rows} * shape.columns / 32;
  const std::int64_t warpgroups = shape.rows / 64;
  const std::int64_t shared = shape.rows + shape.columns + warpgroups * (64 + shape.columns);
  const std::int64_t bytes = (shape.rows + shape.columns / shape.cluster) * row_bytes;
  return std::max({products, shared, bytes / port_bytes,
                   bytes * std::min(active, H100::processors) / cache_bytes});
}

std::int64_t turning_cycles(const HopperSizes& s) {
  const auto turn = [&](bool turns, std::int64_t elements) {
    return turns ? H100::further_kernel + 2 * elements * s.bytes / turned_bytes : 0;
  };
  return turn(s.turns_a, s.m * s.k) + turn(s.turns_b, s.n * s.k);
}

}  // namespace

Slices hopper_slices(const HopperPlan& plan, std::int64_t k_blocks) {
  const int most = most_in_cluster / hopper_shape(plan.tile).cluster;
  return cut_depth(k_blocks, std::min(plan.slices, most), 1, 1);
}

std::int64_t hopper_cycles(const HopperSizes& s, const HopperPlan& plan) {
  const HopperShape shape = hopper_shape(plan.tile);
  const auto [depth, slices] = hopper_slices(plan, blocks_of_k(s));
  const std::int64_t tiles =
      divide_up(s.m, shape.rows * shape.cluster) * shape.cluster * divide_up(s.n, shape.columns);
  const std::int64_t blocks = tiles * slices;
  const std::int64_t rounds = divide_up(blocks, H100::processors_for(shape.cluster * slices));
  const std::int64_t results = std::int64_t{shape.rows} * shape.columns;
  const std::int64_t tile_end = 600 + results / slices * s.result_bytes / 32;
  const std::int64_t ends = divide_up(rounds, shape.blocks) * tile_end;
  const std::int64_t products = rounds * depth * block_cycles(shape, blocks) + ends;
  const Folding folding{s.m, s.n, slices, tiles, results};
  return hopper_start + std::max(products, memory_cycles(s)) +
         (slices > 1 ? folding.in_cluster() : 0) + turning_cycles(s);
}

Estimate twin_plan(const HopperSizes& s) {
  Estimate twin = s.bytes == 4 ? plan_product(s.m, s.n, s.k, tensor_tf32_speeds)
                               : plan_product(s.m, s.n, s.k, tensor_16_speeds);
  twin.cycles = twin_start + std::max(twin.cycles, memory_cycles(s));
  return twin;
}

HopperEstimate hopper_plan(const HopperSizes& s) {
  HopperEstimate best{{}, std::numeric_limits<std::int64_t>::max()};
  for (const HopperTile tile :
       {HopperTile::wide, HopperTile::square, HopperTile::flat, HopperTile::small})
    for (const int slices : {1, 2, 3, 4, 6, 8}) {
      const bool too_short = blocks_of_k(s) < slices * shortest_slice;
      if (slices > 1 && (too_short || slices * hopper_shape(tile).cluster > most_in_cluster)) break;
      const HopperPlan plan{tile, slices};
      const std::int64_t cycles = hopper_cycles(s, plan);
      if (cycles < best.cycles) best = {plan, cycles};
    }
  return best;
}

}  // namespace lockstep::kernels::cuda
