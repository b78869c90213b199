#pragma once
/// How rungs 11 and 12 cut a product into tiles and slices, and what that takes beside their
/// portable twins: a pure function of sizes. It knows neither the GPU nor how busy it is, so that
/// the order of a sum, and with it its bits, is the same on every Hopper.

#include <cstdint>

#include "lockstep/kernels/cuda/gemm/slice_plan.h"

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
  int slices;  ///< of k, wanted as in Plan

  bool operator==(const HopperPlan&) const = default;
};

/// How k is cut, in blocks of 128 bytes: the slices of a tile meet in one cluster.
Slices hopper_slices(const HopperPlan& plan, std::int64_t k_blocks);

/// What the choice depends on.
struct HopperSizes {
  std::int64_t m, n, k;
  int bytes;              ///< of an element of a and b: 2 or 4
  int result_bytes;       ///< of an element of c
  bool turns_a, turns_b;  ///< which must be turned over first (12_hopper_tf32.cu)
};

/// An estimate of the cycles of a multiprocessor's clock that a plan takes; hopper/plan.cpp says
/// how.
std::int64_t hopper_cycles(const HopperSizes& sizes, const HopperPlan& plan);

struct HopperEstimate {
  HopperPlan plan;
  std::int64_t cycles;
};

/// The fastest plan, by hopper_cycles.
HopperEstimate hopper_plan(const HopperSizes& sizes);

/// The plan of the twin, rung 9 or 10, and an estimate to compare with that of hopper_plan.
Estimate twin_plan(const HopperSizes& sizes);

}  // namespace lockstep::kernels::cuda
