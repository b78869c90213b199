/// The choice of tiles and slices for rungs 11 and 12.
///
/// The time of a candidate is estimated for an H100, in clock cycles of a multiprocessor (1755 of
/// them are a microsecond):
///
///   rounds x (blocks of k x cycles per block + end of a tile), or the bytes / 1900 per cycle
///
///   rounds            how many tiles the busiest of 132 multiprocessors computes; two blocks that
///                     share one overlap the end of one tile with the other's products
///   cycles per block  (128 bytes of k) the largest of what the tensor cores take, 1024 for 128 x
///                     256, and what the second-level cache gives: 64 bytes per cycle to one
///                     multiprocessor, 5800 to all. A cluster reads a tile of B once
///   end of a tile     600, and 32 bytes of results per cycle
///
///               tensor cores   bytes      all 132 busy   alone     end (16 bit, f32)
///   wide           1024        32 KiB         1024        1024       2648   4696
///   square          512        24 KiB          559         512       1624   2648
///   flat            256        16 KiB          373         256       1112   1624
///   small           128        16 KiB          373         256        856   1112
///
/// Slices cost a second kernel, and their sums' way to memory and back; matrices that must be
/// turned over cost a kernel and the same way. 132 is a constant here, as on every H100 and H200
/// that computes: were it asked of the device, another would add up in another order.
///
/// Measured (docs/benchmarks.md): what a launch costs, about 0.65 us per block of 64 for a wide
/// tile, and the speed of the kernel that turns matrices over.

#include "lockstep/kernels/cuda/gemm/hopper/plan.h"

#include <algorithm>
#include <array>
#include <initializer_list>

#include "lockstep/kernels/cuda/divide_up.h"
#include "lockstep/kernels/cuda/gemm/slice_plan.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr std::int64_t processors = 132;
constexpr std::int64_t memory_bytes = 1900;    ///< per cycle, read or written
constexpr std::int64_t cache_bytes = 5800;     ///< per cycle, of the second-level cache
constexpr std::int64_t port_bytes = 64;        ///< per cycle, from there to one multiprocessor
constexpr std::int64_t hopper_start = 5000;    ///< until products run, with the kernel's launch
constexpr std::int64_t twin_start = 4200;      ///< the same for rungs 9 and 10
constexpr std::int64_t further_kernel = 3000;  ///< one more kernel before or after
constexpr std::int64_t turned_bytes = 1350;    ///< per cycle, by the kernel that turns a matrix
constexpr std::int64_t row_bytes = 128;        ///< of k, in one stage of the ring
constexpr std::int64_t shortest_slice = 4;     ///< blocks of k
constexpr std::array<int, 6> slice_counts{1, 2, 3, 4, 6, 8};

/// What must pass through memory at least.
std::int64_t memory_cycles(const HopperSizes& s) {
  return ((s.m + s.n) * s.k * s.bytes + s.m * s.n * s.result_bytes) / memory_bytes;
}

/// Per block of k, for one of `active` blocks that run at a time.
std::int64_t block_cycles(const HopperShape& shape, std::int64_t active) {
  const std::int64_t products = std::int64_t{shape.rows} * shape.columns / 32;
  const std::int64_t bytes = (shape.rows + shape.columns / shape.cluster) * row_bytes;
  return std::max(
      {products, bytes / port_bytes, bytes * std::min(active, processors) / cache_bytes});
}

std::int64_t turning_cycles(const HopperSizes& s) {
  const auto turn = [&](bool turns, std::int64_t elements) {
    return turns ? further_kernel + 2 * elements * s.bytes / turned_bytes : 0;
  };
  return turn(s.turns_a, s.m * s.k) + turn(s.turns_b, s.n * s.k);
}

}  // namespace

std::int64_t hopper_cycles(const HopperSizes& s, const HopperPlan& plan) {
  const HopperShape shape = hopper_shape(plan.tile);
  const std::int64_t k_blocks = divide_up(s.k * s.bytes, row_bytes);
  const std::int64_t depth = divide_up(k_blocks, plan.slices);
  const std::int64_t slices = divide_up(k_blocks, depth);
  const std::int64_t blocks = divide_up(s.m, shape.rows * shape.cluster) * shape.cluster *
                              divide_up(s.n, shape.columns) * slices;
  const std::int64_t rounds = divide_up(blocks, processors);
  const std::int64_t tile_end =
      600 + std::int64_t{shape.rows} * shape.columns * (slices > 1 ? 4 : s.result_bytes) / 32;
  const std::int64_t ends = divide_up(rounds, shape.blocks) * tile_end;
  const std::int64_t products = rounds * depth * block_cycles(shape, blocks) + ends;
  // The slices' sums go out to memory, or to the cache in front of it, and come back.
  const std::int64_t fold =
      slices == 1 ? 0 : further_kernel + 2 * slices * s.m * s.n * 4 / memory_bytes;
  return hopper_start + std::max(products, memory_cycles(s)) + fold + turning_cycles(s);
}

/// As rungs 9 and 10 cut it (slice_plan.h).
std::int64_t twin_cycles(const HopperSizes& s) {
  const auto with = [&s](const auto& speeds) {
    const auto [tile, slices] = plan_product(s.m, s.n, s.k, speeds);
    return estimated_clocks(s.m, s.n, speeds[tile], slices);
  };
  const std::int64_t products = s.bytes == 4 ? with(tensor_tf32_speeds) : with(tensor_16_speeds);
  return twin_start + std::max(products, memory_cycles(s));
}

HopperPlan hopper_plan(const HopperSizes& s) {
  const std::int64_t k_blocks = divide_up(s.k * s.bytes, row_bytes);
  HopperPlan best{HopperTile::wide, 1};
  std::int64_t least = hopper_cycles(s, best);
  for (const HopperTile tile :
       {HopperTile::wide, HopperTile::square, HopperTile::flat, HopperTile::small})
    for (const int slices : slice_counts) {
      if (slices > 1 && k_blocks < slices * shortest_slice) break;
      const HopperPlan plan{tile, slices};
      const std::int64_t cycles = hopper_cycles(s, plan);
      if (cycles < least) least = cycles, best = plan;
    }
  return best;
}

bool hopper_pays(const HopperSizes& sizes, const HopperPlan& plan) {
  return hopper_cycles(sizes, plan) <= twin_cycles(sizes);
}

}  // namespace lockstep::kernels::cuda
