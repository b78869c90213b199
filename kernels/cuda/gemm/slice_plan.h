#pragma once
/// Which tiles, and how many slices of K, a product on rungs 8 to 10 is cut into: a pure function
/// of the sizes. slices.cuh says what slices are. hopper/plan.h is the same for rungs 11 and 12.

#include <algorithm>
#include <cstddef>
#include <cstdint>

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

/// A size of tiles that a rung has, and how fast it is: blocks of ROWS x COLUMNS results that go
/// `depth` down K per step, `resident` of them on a multiprocessor at a time. A step takes `alone`
/// clocks where a block has the multiprocessor to itself: that is latency. Where several share it,
/// they take `beside` each.
struct TileSpeed {
  int rows, columns, depth, resident;
  int alone, beside;
};

/// Which of a rung's sizes of tiles, and how K is cut.
struct Plan {
  int tile;
  Slices slices;
};

/// An estimate of the clocks that a product takes, on a GPU of 132 multiprocessors: rounds of
/// blocks that fill them, and a last round that does not. Each round has its first copies and its
/// stores to wait for. Slices cost the second kernel's start, and its traffic.
constexpr std::int64_t estimated_clocks(std::int64_t m, std::int64_t n, const TileSpeed& tile,
                                        const Slices& slices) {
  constexpr std::int64_t processors = 132, ends_of_round = 1500, second_kernel = 3000,
                         bytes_per_clock = 2000;
  const std::int64_t blocks = divide_up(m, tile.rows) * divide_up(n, tile.columns) * slices.count;
  const std::int64_t each = divide_up(blocks, processors);
  const std::int64_t steps = divide_up(slices.depth, tile.depth);
  const auto round = [&](std::int64_t together) {
    const std::int64_t step = std::max<std::int64_t>(tile.alone, together * tile.beside);
    return together == 0 ? 0 : steps * step + ends_of_round;
  };
  const std::int64_t product =
      each / tile.resident * round(tile.resident) + round(each % tile.resident);
  if (slices.count == 1) return product;
  return product + second_kernel + (2 * slices.count + 1) * m * n * 4 / bytes_per_clock;
}

/// The fastest plan by that estimate; of equals the first. It depends on the sizes alone, so that
/// the order of a sum, and with it its bits, is the same on every GPU.
template <std::size_t N>
constexpr Plan plan_product(std::int64_t m, std::int64_t n, std::int64_t k,
                            const TileSpeed (&speeds)[N]) {
  constexpr int shortest = 4;  // steps: to fill the ring of tiles
  Plan best{};
  std::int64_t least = -1;
  for (std::size_t i = 0; i < N; ++i)
    for (const int wanted : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64}) {
      const Slices slices = cut_depth(k, wanted, speeds[i].depth, shortest * speeds[i].depth);
      const std::int64_t clocks = estimated_clocks(m, n, speeds[i], slices);
      if (least < 0 || clocks < least) {
        least = clocks;
        best = {static_cast<int>(i), slices};
      }
      if (slices.count < wanted) break;  // K has no room for more
    }
  return best;
}

/// Tiles of rungs 9 and 10, from times on an H200 (docs/benchmarks.md). Registers and shared memory
/// allow two blocks on a multiprocessor where a warp has 64 x 64 results, and four where it has
/// 32 x 32.
inline constexpr TileSpeed tensor_tf32_speeds[] = {{128, 128, 16, 2, 1200, 910},
                                                   {64, 64, 16, 4, 560, 350}};
inline constexpr TileSpeed tensor_16_speeds[] = {{128, 128, 32, 2, 1000, 720},
                                                 {64, 64, 32, 4, 480, 300}};

}  // namespace lockstep::kernels::cuda
