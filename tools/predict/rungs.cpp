#include "lockstep/tools/predict/rungs.h"

#include <algorithm>

#include "lockstep/core/error.h"

namespace lockstep::predict {
namespace {

/// An operand lies along the depth, or along its rows (columns) of c.
struct Layout {
  bool a_along_depth, b_along_depth;
};

double both(const Layout& layout, double along_depth, double along_outer) {
  return (layout.a_along_depth ? along_depth : along_outer) +
         (layout.b_along_depth ? along_depth : along_outer);
}

// ---- rungs 1 to 7: a step waits for its copies --------------------------------------------------

Demand naive(const Layout& l) {  // of 4 depths; a warp has 16 rows and 2 columns
  return {.instructions = 23,
          .fma = 4,
          .accesses = {{4, l.a_along_depth ? 64.0 : 4}, {4, l.b_along_depth ? 8.0 : 4}}};
}

Demand coalesced(const Layout& l) {  // a warp has a row of 32 columns
  return {.instructions = 23, .fma = 4, .accesses = {{4, 4}, {4, l.b_along_depth ? 128.0 : 4}}};
}

Demand shared(const Layout&) {
  return {.instructions = 166, .fma = 32, .accesses = {{64, 64}, {2, 2}, {2, 2}}};
}

/// Copies float by float: along the depth, a warp has 4 rows of 8.
Demand tile_1d(const Layout& l) {
  return {
      .instructions = 141, .fma = 64, .accesses = {{16, 32}, {8, 8}, {2, both(l, 4, 1)}, {2, 2}}};
}

Demand tile_2d(const Layout& l) {
  return {.instructions = 814,
          .fma = 512,
          .accesses = {{16, 32}, {16, 128}, {8, both(l, 16, 4)}, {8, 8}}};
}

/// Copies by 16 bytes; along the depth each goes to four rows in shared memory.
Demand vectorized(const Layout& l) {
  return {.instructions = 645,
          .fma = 512,
          .accesses = {{16, 32}, {16, 64}, {2, both(l, 16, 4)}, {both(l, 4, 1), both(l, 4, 4)}}};
}

Demand warp_tile(const Layout& l) {
  return {.instructions = 660,
          .fma = 512,
          .accesses = {{16, 32}, {16, 32}, {2, both(l, 16, 4)}, {both(l, 4, 1), both(l, 4, 4)}}};
}

// ---- rungs 8 to 10: copies run ahead ------------------------------------------------------------

/// Copies of one warp in a step, each with the instructions round it.
constexpr double per_copy = 4, per_step = 40;

/// Of `threads` x `results` sums. Along the depth copies are of 4 bytes: they read pieces of
/// `depth` floats, and write to two words of a bank.
Demand double_buffered(const Tiling& t, const Layout& l) {
  const double results = t.rows * t.columns / (t.warps * 32.0);
  const double rows = results == 128 ? 16 : results == 32 ? 8 : 4;
  const double reads_a = rows / 4 * t.depth, reads_b = results / rows / 4 * t.depth;
  const double narrow = t.rows * t.depth / (t.warps * 32.0), wide = narrow / 4;
  const double lines = 32.0 / t.depth;
  const double copies = both(l, narrow, wide);
  return {.instructions = results * t.depth + reads_a + reads_b + per_copy * copies + per_step,
          .fma = results * t.depth,
          .accesses = {{reads_a, 2 * reads_a}, {reads_b, 2 * reads_b}},
          .beside = {{copies, both(l, narrow * (lines + 2), wide * 4)}}};
}

/// Four warps with side x side results each, by mma.sync. `reads`: of operands, with their
/// wavefronts; `others`: instructions round them.
Demand tensor(const Tiling& t, const Layout& l, Access reads, double others) {
  const double copies = t.rows * 64.0 / 16 / 128;  // of each operand: 64 bytes of depth
  const double products = t.rows * t.columns / 4.0 / 128 * 2;
  return {.instructions = products + reads.requests + others + per_copy * 2 * copies + per_step,
          .tensor = t.rows * t.columns / 4.0 * 32,  // tf32: 16 of depth, which count twice
          .accesses = {reads},
          .beside = {{2 * copies, both(l, 8 * copies, 4 * copies)}}};
}

Demand step_of(int rung, const Tiling& t, const Layout& l) {
  const double side = t.rows / 2.0;
  switch (rung) {
    case 1: return naive(l);
    case 2: return coalesced(l);
    case 3: return shared(l);
    case 4: return tile_1d(l);
    case 5: return tile_2d(l);
    case 6: return vectorized(l);
    case 7: return warp_tile(l);
    case 8: return double_buffered(t, l);
    case 9: return tensor(t, l, {side, side}, 1.8 * side);
    default: break;
  }
  return tensor(t, l, {side / 4, side}, 8);
}

/// Passes per request of the stores of c, and how much of their sectors are results.
Demand ends_of(int rung, const Tiling& t, int result_bytes) {
  const double results = t.rows * t.columns / static_cast<double>(t.warps);  // of a warp
  if (rung == 1) return {.instructions = 20, .accesses = {{1, 16}}, .to_l2 = 16 * 32};
  if (rung <= 4)
    return {.instructions = results / 4,
            .accesses = {{results / 32, results / 32}},
            .to_l2 = 4 * results};
  if (rung == 5)  // 32 sectors for 32 results
    return {.instructions = results / 4,
            .accesses = {{results / 32, results / 4}},
            .to_l2 = 32 * results};
  const double lines = result_bytes == 2 ? 2 : 4;
  return {.instructions = results / 8,
          .accesses = {{results / 128, results / 128 * lines}},
          .to_l2 = result_bytes * results};
}

constexpr Tiling small_rungs[] = {
    {16, 16, 4, 8, 32, 0},       {8, 32, 4, 8, 32, 0},        {32, 32, 32, 32, 32, 8448},
    {64, 64, 8, 16, 32, 4352},   {128, 128, 8, 8, 180, 8448}, {128, 128, 8, 8, 128, 8448},
    {128, 128, 8, 8, 120, 8448},
};
constexpr Tiling double_buffered_tiles[] = {
    {128, 128, 8, 4, 225, 33792}, {64, 64, 8, 4, 125, 17408}, {32, 32, 16, 2, 95, 18432}};
constexpr Tiling tensor_tf32_tiles[] = {{128, 128, 16, 4, 210, 81920}, {64, 64, 16, 4, 94, 40960}};
constexpr Tiling tensor_16_tiles[] = {{128, 128, 32, 4, 230, 81920}, {64, 64, 32, 4, 104, 40960}};

}  // namespace

const Tiling& tiling_of(int rung, int tile) {
  if (rung == 8) return double_buffered_tiles[tile];
  if (rung == 9) return tensor_tf32_tiles[tile];
  if (rung == 10) return tensor_16_tiles[tile];
  return small_rungs[rung - 1];
}

Work tiled_work(int rung, const Tiling& t, const Product& p, int result_bytes) {
  Work work{.kernel = "product",
            .warps = t.warps,
            .registers = t.registers,
            .shared_bytes = t.shared_bytes};
  work.step = step_of(rung, t, {!p.transpose_a, p.transpose_b});
  work.step.from_l2 = static_cast<double>((t.rows + t.columns) * t.depth * p.bytes()) / t.warps;
  work.ends = ends_of(rung, t, result_bytes);
  work.warps_wait = rung <= 2;
  work.barriers = rung <= 2 ? 0 : rung <= 7 ? 2 : 1;
  work.ahead = rung >= 8 ? 3 : 1;
  work.operand_waits = rung == 7 ? 4 : rung >= 8 ? 1 : 0;  // rung 7 unrolls two depths of eight
  return work;
}

Work hopper_work(const kernels::cuda::HopperShape& s, int result_bytes) {
  constexpr double row = 128, pass = 128;  // bytes
  const int consumers = s.rows / 64;
  const int warps = 4 + 4 * consumers;
  const double copied = (s.rows + s.columns) * row;
  const double read = consumers * 64 * row + consumers * s.columns * row;  // by wgmma
  const double results = s.rows * s.columns, stored = results * result_bytes;
  const double patches = 4 * consumers * (16 * 144 + 4.0 * s.columns);
  Work work{.kernel = "hopper_product",
            .warps = warps,
            .registers = 65536 / s.blocks / (warps * 32) / 8 * 8,
            .shared_bytes = static_cast<int>(s.stages * copied + patches),
            .ahead = s.stages,
            .wgmma = true,
            .persistent = true,
            .cluster = s.cluster};
  // A consumer keeps products under way while it waits for the next stage, so no wait is seen.
  work.step = {.instructions = 45,
               .tensor = results * 64 / warps,
               .accesses = {{1, 1.0 * s.cluster}},
               .beside = {{0, (copied + read) / pass / warps}},
               .from_l2 = (s.rows + s.columns / static_cast<double>(s.cluster)) * row / warps};
  // Results go through shared memory, pair by pair and out by 16 bytes.
  work.ends = {.instructions = 13 * results / 32 / warps,
               .accesses = {{stored / 256 / warps, stored / 128 / warps},
                            {stored / 512 / warps, stored / 128 / warps},
                            {stored / 512 / warps, stored / 128 / warps}},
               .to_l2 = stored / warps};
  return work;
}

}  // namespace lockstep::predict
