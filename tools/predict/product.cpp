// Which launches a product is made of. rungs.cpp has what each of them does.
#include "lockstep/tools/predict/product.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "lockstep/core/error.h"
#include "lockstep/tools/predict/predict.h"
#include "lockstep/tools/predict/rungs.h"

namespace lockstep::predict {

using kernels::divide_up;
using kernels::cuda::HopperPlan;
using kernels::cuda::HopperSizes;
using kernels::cuda::Plan;
using kernels::cuda::Slices;

namespace {

HopperSizes hopper_sizes(const Product& p) {
  const bool turns = p.bytes() == 4;
  return {
      p.m, p.n, p.k, p.bytes(), p.result_bytes, turns && p.transpose_a, turns && !p.transpose_b};
}

Operation operation_of(const Product& p, std::string name, std::vector<Work> launches) {
  const auto m = static_cast<double>(p.m), n = static_cast<double>(p.n);
  const auto k = static_cast<double>(p.k);
  return {.name = std::move(name),
          .launches = std::move(launches),
          .flops = 2 * m * n * k,
          .unit = p.precision == Precision::f32    ? Unit::fma
                  : p.precision == Precision::tf32 ? Unit::tensor32
                                                   : Unit::tensor16,
          .fewest_bytes = (m + n) * k * p.bytes() + m * n * p.result_bytes};
}

/// What is written and read again is still in L2 if it takes at most half of it.
double beyond_l2(double bytes, const Gpu& gpu) {
  return 2 * bytes <= static_cast<double>(gpu.l2_size) ? 0 : bytes;
}

/// The blocks' ends, where `slices` slices meet in a cluster: each block puts its `results` sums
/// into shared memory, and reads its share of them from all.
void fold_in_cluster(Work& work, const Product& p, double results, int slices) {
  const double each = results / work.warps, share = each / slices;
  work.ends = {.instructions = each / 32 + share / 128 * (6 * slices + 40),
               .accesses = {{each / 64, each * 4 / 128}, {each / 128, each * 4 / 128}},
               .to_l2 = share * p.result_bytes,
               .from_neighbours = each * 4 * (slices - 1) / slices};
  work.meeting = kernels::cuda::H100::meeting;
  work.persistent = false;
  work.cluster *= slices;
  work.processors = static_cast<int>(kernels::cuda::H100::processors_for(work.cluster));
}

/// With the product's own reads, and the writes of its results or of its slices' sums.
void add_bytes(Work& work, const Product& p, const Tiles& tiles, int slices, const Gpu& gpu) {
  const double processors = work.processors ? work.processors : gpu.processors;
  const double at_once = processors * resident_blocks(work, gpu) / work.cluster;
  const double results = static_cast<double>(p.m * p.n);
  work.memory_bytes = bytes_read(tiles, at_once, gpu);
  work.memory_bytes +=
      slices == 1 ? results * p.result_bytes : beyond_l2(4 * results * slices, gpu);
}

/// Threads add up `slices` matrices of sums, four neighbours each.
Work fold(const Product& p, int slices, const Gpu& gpu) {
  const double results = static_cast<double>(p.m * p.n);
  const double at_once = std::min(slices, 8);
  Work work{.kernel = "fold_slices",
            .blocks = divide_up(p.m * p.n, 512),
            .warps = 4,
            .registers = 48,
            .steps = slices / at_once};
  work.step = {
      .instructions = 12 * at_once, .accesses = {{at_once, 4 * at_once}}, .from_l2 = 512 * at_once};
  work.ends = {.instructions = 40, .accesses = {{1, 4}}, .to_l2 = 128.0 * p.result_bytes};
  work.memory_bytes = beyond_l2(4 * results * slices, gpu) + results * p.result_bytes;
  return work;
}

/// Turns a matrix of floats over, by tiles of 32 x 32.
Work turn(std::int64_t rows, std::int64_t columns, const Gpu& gpu) {
  const double bytes = 4.0 * static_cast<double>(rows * columns);
  Work work{.kernel = "hopper_turn",
            .blocks = divide_up(rows, 32) * divide_up(columns, 32),
            .warps = 8,
            .registers = 32,
            .shared_bytes = 32 * 33 * 4,
            .steps = 1,
            .barriers = 1};
  work.step = {.instructions = 60, .accesses = {{4, 4}, {4, 4}, {4, 4}}, .from_l2 = 512};
  work.ends = {.instructions = 8, .accesses = {{4, 4}}, .to_l2 = 512};
  work.memory_bytes = bytes + beyond_l2(bytes, gpu);
  return work;
}

}  // namespace

double bytes_read(const Tiles& t, double at_once, const Gpu& gpu) {
  const double down = static_cast<double>(divide_up(t.m, t.rows));
  const double across = static_cast<double>(divide_up(t.n, t.columns));
  const double once = static_cast<double>((t.m + t.n) * t.k) * t.bytes;
  if (beyond_l2(once, gpu) == 0) return once;
  const double band = std::min<double>(t.band, down);
  const double columns = std::min(across, at_once / band);
  const double rows = std::min(down, band * std::max(1.0, at_once / (band * across)));
  const double waves = std::max(1.0, down * across / at_once);
  return std::max(
      once, waves * (rows * t.rows + columns * t.columns) * static_cast<double>(t.k) * t.bytes);
}

Operation product_by(const HopperPlan& plan, const Product& p, const Gpu& gpu) {
  const auto shape = kernels::cuda::hopper_shape(plan.tile);
  const std::int64_t k_blocks = divide_up(p.k * p.bytes(), 128);
  const Slices slices = gpu.clusters ? kernels::cuda::hopper_slices(plan, k_blocks)
                                     : kernels::cuda::cut_depth(k_blocks, plan.slices, 1, 1);
  const bool by_kernel = slices.count > 1 && !gpu.clusters;
  std::vector<Work> launches;
  const HopperSizes sizes = hopper_sizes(p);
  if (sizes.turns_a) launches.push_back(turn(p.m, p.k, gpu));
  if (sizes.turns_b) launches.push_back(turn(p.k, p.n, gpu));
  Work work = hopper_work(shape, by_kernel ? 4 : p.result_bytes);
  work.blocks = divide_up(p.m, shape.rows * shape.cluster) * shape.cluster *
                divide_up(p.n, shape.columns) * slices.count;
  work.steps = static_cast<double>(slices.depth);
  add_bytes(work, p, {p.m, p.n, p.k, shape.rows * shape.cluster, shape.columns, p.bytes(), 8},
            by_kernel ? slices.count : 1, gpu);
  if (slices.count > 1 && !by_kernel)
    fold_in_cluster(work, p, shape.rows * shape.columns, slices.count);
  launches.push_back(std::move(work));
  if (by_kernel) launches.push_back(fold(p, slices.count, gpu));
  return operation_of(
      p,
      fmt::format("{} {}x{}{}", p.bytes() == 2 ? 11 : 12, shape.rows * shape.cluster, shape.columns,
                  slices.count > 1 ? fmt::format(" /{}", slices.count) : ""),
      std::move(launches));
}

namespace {

Operation on_tiles(int rung, const Tiling& tiling, int wanted, const Product& p, const Gpu& gpu) {
  const Slices slices = kernels::cuda::cut_depth(p.k, wanted, tiling.depth,
                                                 kernels::cuda::shortest_slice * tiling.depth);
  const std::int64_t tiles = divide_up(p.m, tiling.rows) * divide_up(p.n, tiling.columns);
  const kernels::cuda::Folding folding{p.m, p.n, slices.count, tiles,
                                       std::int64_t{tiling.rows} * tiling.columns};
  const bool in_cluster = slices.count > 1 && gpu.clusters && folding.prefers_cluster();
  const bool by_kernel = slices.count > 1 && !in_cluster;
  Work work = tiled_work(rung, tiling, p, by_kernel ? 4 : p.result_bytes);
  work.blocks = tiles * slices.count;
  work.steps = static_cast<double>(divide_up(slices.depth, tiling.depth));
  const int band = rung >= 9 ? 8 : 1;
  add_bytes(work, p, {p.m, p.n, p.k, tiling.rows, tiling.columns, p.bytes(), band},
            by_kernel ? slices.count : 1, gpu);
  if (in_cluster) fold_in_cluster(work, p, tiling.rows * tiling.columns, slices.count);
  std::vector<Work> launches{std::move(work)};
  if (by_kernel) launches.push_back(fold(p, slices.count, gpu));
  return operation_of(p,
                      fmt::format("{} {}x{}{}", rung, tiling.rows, tiling.columns,
                                  slices.count > 1 ? fmt::format(" /{}", slices.count) : ""),
                      std::move(launches));
}

}  // namespace

Operation product_by(const Plan& plan, const Product& p, const Gpu& gpu) {
  const int rung = p.precision == Precision::f32 ? 8 : p.precision == Precision::tf32 ? 9 : 10;
  return on_tiles(rung, tiling_of(rung, plan.tile), plan.slices, p, gpu);
}

Operation product_on_rung(int rung, const Product& p, const Gpu& gpu) {
  const Precision needed = rung == 10 || rung == 11  ? Precision::bf16
                           : rung == 9 || rung == 12 ? Precision::tf32
                                                     : Precision::f32;
  check<UsageError>(rung >= 1 && rung <= 12 && needed == p.precision,
                    "predict: rung {} does not compute this precision", rung);
  if (rung < 8) return on_tiles(rung, tiling_of(rung, 0), 1, p, gpu);
  if (rung >= 11) return product_by(kernels::cuda::hopper_plan(hopper_sizes(p)).plan, p, gpu);
  if (rung >= 9) return product_by(kernels::cuda::twin_plan(hopper_sizes(p)).plan, p, gpu);
  return product_by(
      kernels::cuda::plan_product(p.m, p.n, p.k, kernels::cuda::double_buffered_speeds).plan, p,
      gpu);
}

Operation product_named(const std::string& plan, const Product& p, const Gpu& gpu) {
  using kernels::cuda::HopperTile;
  int rung = 0, rows = 0, columns = 0, slices = 1;
  const int read = std::sscanf(plan.c_str(), "%d %dx%d /%d", &rung, &rows, &columns, &slices);
  check<UsageError>(read >= 3, "predict: '{}' is not a plan like '8 32x32 /4'", plan);
  if (rung >= 11) {
    for (const HopperTile tile :
         {HopperTile::wide, HopperTile::square, HopperTile::flat, HopperTile::small}) {
      const auto shape = kernels::cuda::hopper_shape(tile);
      if (shape.rows * shape.cluster == rows && shape.columns == columns)
        return product_by(HopperPlan{tile, slices}, p, gpu);
    }
  } else {
    for (int tile = 0; tile < (rung == 8 ? 3 : 2); ++tile)
      if (tiling_of(rung, tile).rows == rows && tiling_of(rung, tile).columns == columns)
        return product_by(Plan{tile, slices}, p, gpu);
  }
  fail<UsageError>("predict: rung {} has no tiles of {}x{}", rung, rows, columns);
}

Operation chosen_product(const Product& p, const Gpu& gpu) {
  if (p.precision == Precision::f32) return product_on_rung(8, p, gpu);
  const HopperSizes sizes = hopper_sizes(p);
  const auto twin = kernels::cuda::twin_plan(sizes);
  if (gpu.wgmma == 0) return product_by(twin.plan, p, gpu);
  const auto hopper = kernels::cuda::hopper_plan(sizes);
  return hopper.cycles <= twin.cycles ? product_by(hopper.plan, p, gpu)
                                      : product_by(twin.plan, p, gpu);
}

}  // namespace lockstep::predict
