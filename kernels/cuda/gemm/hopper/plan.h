#pragma once
/// How rungs 11 and 12 cut a product into tiles and slices, and when their portable twins are
/// better: a pure function of sizes. It knows neither the GPU nor how busy it is, so that the order
/// of a sum, and with it its bits, is the same on every Hopper.

#include <cstdint>

namespace lockstep::kernels::cuda {

/// Blocks that compute a part of c together: `cluster` of them, one above the other, compute `rows`
/// x `columns` each, and share what they read of B. A stage of their rings is 128 bytes of k.
struct HopperShape {
  int rows, columns;
  int cluster;
  int stages;
  int blocks;  ///< that share a multiprocessor
};

/// The tiles, the largest first.
enum class HopperTile { wide, square, flat, small };

constexpr HopperShape hopper_shape(HopperTile tile) {
  switch (tile) {
    case HopperTile::wide: return {128, 256, 2, 4, 1};
    case HopperTile::square: return {128, 128, 2, 6, 1};
    case HopperTile::flat: return {64, 128, 2, 4, 2};
    case HopperTile::small: break;
  }
  return {64, 64, 1, 6, 2};
}

struct HopperPlan {
  HopperTile tile;
  int slices;  ///< wanted, of k: each becomes a sum of its own (slices.cuh)

  bool operator==(const HopperPlan&) const = default;
};

/// What the choice depends on.
struct HopperSizes {
  std::int64_t m, n, k;
  int bytes;              ///< of an element of a and b: 2 or 4
  int result_bytes;       ///< of an element of c
  bool turns_a, turns_b;  ///< which must be turned over first (12_hopper_tf32.cu)
};

/// Estimates in clock cycles of a multiprocessor; hopper/plan.cpp says how.
std::int64_t hopper_cycles(const HopperSizes& sizes, const HopperPlan& plan);
std::int64_t twin_cycles(const HopperSizes& sizes);

/// The fastest plan, by hopper_cycles.
HopperPlan hopper_plan(const HopperSizes& sizes);

/// Whether it is faster than the twin, by these estimates.
bool hopper_pays(const HopperSizes& sizes, const HopperPlan& plan);

}  // namespace lockstep::kernels::cuda
