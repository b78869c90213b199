// S. Boehm's kernels. All compute c = alpha a b + beta c of row-major squares, a tile per block.
#include <algorithm>

#include "lockstep/tools/predict/published.h"

namespace lockstep::predict {
namespace boehm {
namespace {

constexpr double n = 4096;

/// Of a block that computes `rows` x `columns` in steps of `depth`.
Work tiled(std::string kernel, int rows, int columns, int depth, int warps, int registers) {
  Work work{.kernel = std::move(kernel),
            .blocks = static_cast<std::int64_t>(n / rows * (n / columns)),
            .warps = warps,
            .registers = registers,
            .shared_bytes = (rows + columns) * depth * 4,
            .steps = n / depth,
            .barriers = 2};
  work.step.from_l2 = (rows + columns) * depth * 4.0 / warps;
  // c is read and written.
  const double c = 8.0 * rows * columns / warps;
  work.ends = {.instructions = c / 8, .accesses = {{c / 512, c / 128}}, .to_l2 = c / 2};
  // Blocks of a wave have few rows of a, and all columns of b: b passes through once per wave.
  const double at_once = 84.0 * 65536 / (registers * 32.0 * warps) * rows * columns;
  work.memory_bytes = 4 * n * n * (3 + std::max(1.0, n * n / at_once));
  return work;
}

Work naive() {
  Work work = tiled("1: naive", 32, 32, 4, 32, 36);
  work.shared_bytes = work.barriers = 0;
  work.warps_wait = true;
  // Per depth 32 rows of a, a line each, and one number of b.
  work.step.instructions = 33;
  work.step.fma = 4;
  work.step.accesses = {{4, 4 * 32}, {4, 4}};
  return work;
}

Work coalesced() {
  Work work = tiled("2: coalescing", 32, 32, 16, 32, 40);
  work.shared_bytes = work.barriers = 0;
  work.warps_wait = true;
  work.step.instructions = 74;
  work.step.fma = 16;
  work.step.accesses = {{32, 32}};  // a number of a, a line of b
  return work;
}

Work shared() {
  Work work = tiled("3: shared memory", 32, 32, 32, 32, 36);
  work.step.instructions = 84;
  work.step.fma = 32;
  work.step.accesses = {{8, 16}, {32, 32}, {2, 2}, {2, 2}};  // a by four, b; the copies
  return work;
}

Work tile_1d() {
  Work work = tiled("4: 1D tiles", 64, 64, 8, 16, 44);
  work.step.instructions = 107;
  work.step.fma = 64;
  work.step.accesses = {{16, 32}, {8, 8}, {1, 4}, {1, 1}, {2, 2}};
  return work;
}

/// b is read 32 bytes apart by neighbours, in kernels 5, 6 and 9: of four passes each takes two.
Work tile_2d() {
  Work work = tiled("5: 2D tiles", 128, 128, 8, 8, 128);
  work.step.instructions = 627;
  work.step.fma = 512;
  work.step.accesses = {{16, 32}, {16, 128}, {8, 8}, {4, 16}, {4, 4}, {8, 8}};
  return work;
}

Work vectorized() {
  Work work = tiled("6: vectorized", 128, 128, 8, 8, 116);
  work.step.instructions = 579;
  work.step.fma = 512;
  work.step.accesses = {{16, 32}, {16, 128}, {1, 16}, {1, 4}, {4, 8}, {1, 4}};
  return work;
}

Work autotuned() {
  Work work = tiled("9: autotuned", 128, 128, 16, 8, 100);
  work.step.instructions = 1158;
  work.step.fma = 1024;
  work.step.accesses = {{32, 64}, {32, 256}, {2, 16}, {2, 8}, {8, 32}, {2, 8}};
  return work;
}

Work warp_tile() {
  Work work = tiled("10: warp tiles", 128, 128, 16, 4, 168);
  work.step.instructions = 2242;
  work.step.fma = 2048;
  work.step.accesses = {{32, 64}, {64, 256}, {4, 32}, {4, 16}, {16, 64}, {4, 16}};
  return work;
}

/// Half of the threads copies for one step while the other half computes, and the other way round:
/// in two of three phases half of them compute. The loop over a tile is not unrolled.
Work double_buffered() {
  Work work = tiled("11: double buffering", 128, 256, 32, 8, 170);
  work.barriers = 3;
  work.operand_waits = 32;
  work.at_work = 2.0 / 3;
  work.step.instructions = 32 * 140 + 120;
  work.step.fma = 32 * 128;
  work.step.accesses = {{128, 256}, {64, 256}, {4, 32}, {8, 32}, {16, 64}, {8, 32}};
  return work;
}

/// Nobody knows its kernel: kernel 10 with copies that run ahead, which is what CUTLASS does.
Work cublas() {
  Work work = warp_tile();
  work.kernel = "0: cuBLAS";
  work.ahead = 4;
  work.barriers = 1;
  work.shared_bytes *= 2;
  return work;
}

Published row(Work work, double gflops, std::string remark) {
  const std::string name = work.kernel;
  return {"A6000",
          {.name = name,
           .launches = {std::move(work)},
           .flops = 2 * n * n * n,
           .unit = Unit::fma,
           .fewest_bytes = 16 * n * n},
          gflops * 1e9,
          std::move(remark)};
}

}  // namespace
}  // namespace boehm

std::vector<Published> published_boehm() {
  using namespace boehm;
  return {
      row(naive(), 309.0, "32 x 32 threads, a warp down a column; rung 1 has 16 x 16"),
      row(coalesced(), 1986.5, "rung 2 has blocks of 8 x 32"),
      row(shared(), 2980.3, "reads a by 16 bytes, rung 3 by 4"),
      row(tile_1d(), 8474.7, "as rung 4"),
      row(tile_2d(), 15971.7, "reads a by 16 bytes along the depth"),
      row(double_buffered(), 17278.3, "two halves of a block alternate; rung 8 copies by cp.async"),
      row(vectorized(), 18237.3, "rung 6 has quads of columns 64 apart: fewer bank conflicts"),
      row(autotuned(), 19721.0, "kernel 6 with steps of 16; no rung"),
      row(warp_tile(), 21779.3, "64 x 64 results per warp; rung 7 has 32 x 64"),
      row(cublas(), 23249.6, "its kernel is not known: kernel 10 with copies ahead"),
  };
}

}  // namespace lockstep::predict
