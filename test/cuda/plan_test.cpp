/// How products are cut into tiles and slices: pure functions of their sizes.

#include "lockstep/kernels/cuda/gemm/hopper/plan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

using namespace lockstep::kernels::cuda;

namespace plans {
namespace {

constexpr HopperTile every_tile[] = {HopperTile::wide, HopperTile::square, HopperTile::flat,
                                     HopperTile::small};

HopperPlan hopper(const HopperSizes& sizes) { return hopper_plan(sizes).plan; }

bool hopper_pays(const HopperSizes& sizes) {
  return hopper_plan(sizes).cycles <= twin_plan(sizes).cycles;
}

/// Of a layer with `width` inputs and outputs: y = x w^T, the gradient of w, and that of x.
std::vector<HopperSizes> layer(std::int64_t batch, std::int64_t width, int bytes) {
  const bool turns = bytes == 4;
  return {{batch, width, width, bytes, bytes, false, false},
          {width, width, batch, bytes, 4, turns, turns},
          {batch, width, width, bytes, bytes, false, turns}};
}

}  // namespace

TEST_CASE("plans: tiles and slices of rungs 8 to 10") {
  struct Row {
    std::int64_t m, n, k;
    Plan f32, tf32, b16;
  };
  for (const Row& row : {
           // Large results; the same in slices, where these fill the last round.
           Row{4096, 4096, 4096, {0, 1}, {0, 1}, {0, 1}},
           Row{1024, 1024, 1024, {0, 4}, {0, 4}, {0, 2}},
           Row{512, 512, 2048, {1, 8}, {0, 8}, {1, 4}},
           // Few results: small tiles, and slices where K is long. With more slices than K has
           // room for, what it has room for is not left out.
           Row{256, 256, 64, {2, 1}, {1, 1}, {1, 1}},
           Row{128, 128, 2048, {2, 24}, {1, 32}, {1, 8}},
           Row{128, 512, 784, {2, 8}, {1, 8}, {1, 6}},
           Row{16, 16, 5120, {2, 64}, {1, 64}, {1, 48}},
       }) {
    CAPTURE(row.m);
    CAPTURE(row.n);
    CAPTURE(row.k);
    CHECK(plan_product(row.m, row.n, row.k, double_buffered_speeds).plan == row.f32);
    CHECK(plan_product(row.m, row.n, row.k, tensor_tf32_speeds).plan == row.tf32);
    CHECK(plan_product(row.m, row.n, row.k, tensor_16_speeds).plan == row.b16);
  }
}

TEST_CASE("plans: the scratch memory of slices has an end") {
  for (const std::int64_t size : {1024, 4096, 5120, 28672})
    for (const std::int64_t k : {16384, 131072}) {
      CAPTURE(size);
      CAPTURE(k);
      const auto sums = [&](int slices) { return slices > 1 ? slices * size * size : 0; };
      CHECK(sums(plan_product(size, size, k, double_buffered_speeds).plan.slices) <= 1 << 26);
      CHECK(sums(plan_product(size, size, k, tensor_tf32_speeds).plan.slices) <= 1 << 26);
      CHECK(sums(plan_product(size, size, k, tensor_16_speeds).plan.slices) <= 1 << 26);
    }
}

// By hand from the figures in slice_plan.h.
TEST_CASE("plans: few sums meet in a cluster, many in scratch memory") {
  // 32 tiles of 32 x 32 in 4 slices: one block per multiprocessor, which reads three quarters.
  const Folding few{128, 256, 4, 32, 32 * 32};
  CHECK(few.in_cluster() == 700 + 32 * 32 * 4 * 3 / 4 / 14);
  CHECK(few.by_kernel() == 3000 + 9 * 128 * 256 * 4 / 1900);
  CHECK(few.prefers_cluster());
  CHECK(few.cycles() == few.in_cluster());
  // Tiles of 128 x 128: 32 KiB and more from others.
  const Folding large{1024, 1024, 2, 64, 128 * 128};
  CHECK(large.in_cluster() == 700 + 128 * 128 * 4 / 2 / 14);
  CHECK(large.by_kernel() == 3000 + 5 * 1024 * 1024 * 4 / 1900);
  // 40 clusters of 6: 18 of them run at a time, 240 blocks are 3 rounds on 108 multiprocessors.
  const Folding odd{256, 160, 6, 40, 32 * 32};
  CHECK(odd.in_cluster() == 700 + 3 * (32 * 32 * 4 * 5 / 6) / 14);
  CHECK(Folding{128, 256, 9, 32, 32 * 32}.prefers_cluster() == false);  // more than 8 blocks
  CHECK(Folding{128, 256, 1, 32, 32 * 32}.cycles() == 0);
}

TEST_CASE("plans: no slice is empty, and only the last one is short") {
  for (const std::int64_t k : {1, 31, 32, 33, 1000, 2048, 5120})
    for (const int wanted : {1, 2, 3, 7, 24, 64}) {
      CAPTURE(k);
      CAPTURE(wanted);
      const Slices slices = cut_depth(k, wanted, 16, 64);
      CHECK(slices.count <= wanted);
      CHECK(slices.depth % 16 == 0);
      CHECK((slices.count - 1) * slices.depth < k);
      CHECK(slices.count * slices.depth >= k);
      if (slices.count > 1) CHECK(slices.depth >= 64);
    }
}

TEST_CASE("hopper: the plan of a training step's products") {
  using enum HopperTile;
  // Large results: the widest tiles. Smaller ones: tiles for all multiprocessors.
  CHECK(hopper({4096, 4096, 4096, 2, 2, false, false}) == HopperPlan{wide, 1});
  CHECK(hopper({2048, 2048, 1024, 2, 4, false, false}) == HopperPlan{wide, 1});
  CHECK(hopper({1024, 2048, 2048, 2, 2, false, false}) == HopperPlan{square, 1});
  CHECK(hopper({1024, 1024, 1024, 2, 2, false, false}) == HopperPlan{flat, 1});
  // Few results and long sums: slices, as many as a cluster has blocks.
  CHECK(hopper({128, 512, 784, 2, 2, false, false}) == HopperPlan{small, 3});
  CHECK(hopper({256, 256, 8192, 2, 4, false, false}) == HopperPlan{small, 8});
  CHECK(hopper({512, 512, 4096, 2, 4, false, false}) == HopperPlan{flat, 4});
  // Two matrices to turn over, for short sums, or a large one for few results: the twin.
  CHECK_FALSE(hopper_pays({512, 512, 128, 4, 4, true, true}));
  CHECK_FALSE(hopper_pays({128, 4096, 4096, 4, 4, false, true}));
  CHECK(hopper_pays({128, 4096, 4096, 4, 4, false, false}));
}

TEST_CASE("hopper: a plan is the fastest by its own estimate, and leaves no slice empty") {
  int cut = 0;
  for (const int bytes : {2, 4})
    for (const std::int64_t batch : {1, 128, 1024, 8192})
      for (std::int64_t width = 64; width <= 8192; width *= 2)
        for (const HopperSizes& sizes : layer(batch, width, bytes)) {
          const auto [plan, cycles] = hopper_plan(sizes);
          const std::int64_t k_blocks = (sizes.k * bytes + 127) / 128;
          CHECK(cycles == hopper_cycles(sizes, plan));
          for (const HopperTile tile : every_tile)
            for (const int slices : {1, 2, 3, 4, 6, 8})
              if (slices == 1 || (k_blocks >= slices * 4 &&
                                  slices * hopper_shape(tile).cluster <= most_in_cluster))
                CHECK(cycles <= hopper_cycles(sizes, {tile, slices}));
          CHECK(plan.slices >= 1);
          CHECK((plan.slices == 1 || k_blocks >= plan.slices * 4));
          CHECK(plan.slices * hopper_shape(plan.tile).cluster <= most_in_cluster);
          if (plan.slices > 1) ++cut;
        }
  CHECK(cut > 0);
}

}  // namespace plans
