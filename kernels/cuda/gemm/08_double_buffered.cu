/// Rung 8: copies that run while the block computes, and work for every multiprocessor.
///
/// A block of rung 7 does one thing at a time: it copies a tile, waits at a barrier, computes,
/// waits again. Here a ring of STAGES tiles lies in shared memory. While the block computes on one
/// of them, asynchronous copies fill the others, STAGES - 1 steps ahead:
///
///     stage    0     1     2     3
///     step 0  use   copy  copy  copy         one barrier per step: it says that the tile to be
///     step 1  copy  use   copy  copy         used has arrived for everybody, and that everybody
///     step 2  copy  copy  use   copy         is done with the stage that is filled next
///
/// Copies of 4 bytes can put each number where it belongs, so a tile is transposed on its way and
/// needs no alignment; where 16 bytes can go at once they do (tile_copier.cuh). In the registers
/// the same is done on a small scale: the operands of the next depth are read before the products
/// of this one are formed. And since the copies need no registers, a thread can hold twice as many
/// sums, 16 x 8: per depth 6 reads of 16 bytes for 128 products (rung 7: 4 for 64).
///
/// Small problems have another trouble: 128 x 256 results are two tiles of 128 x 128, and 130
/// multiprocessors have nothing to do. So there are three sizes of tiles, and where tiles are few
/// and K is long, the sum over K is split into slices, which are added up at the end, always in the
/// same order (slices.cuh). slice_plan.h chooses the tiles and the slices.
///
/// Sources: PTX ISA, cp.async; CUTLASS documentation, "Efficient GEMM in CUDA": pipelining,
/// split-K.
//
// Counted (./lockstep count --write; docs/counters.md):
//   gemm_08_double_buffered_f32 256x256x64 NN: stores 16.00 (100 %), cp.async 6.40 (100 %),
//     into shared 2.40 (1.60), shared loads 4.00 (4.00), in 4-byte copies 524288 B,
//     in 16-byte copies 524288 B, DRAM 1.00 of the fewest
//   gemm_08_double_buffered_f32 256x256x64 NT: stores 16.00 (100 %), cp.async 4.00 (100 %),
//     into shared 2.00 (1.00), shared loads 4.00 (4.00), in 4-byte copies 1048576 B,
//     DRAM 1.00 of the fewest
//   gemm_08_double_buffered_f32 256x256x64 TN: stores 16.00 (100 %), cp.async 16.00 (100 %),
//     into shared 4.00 (4.00), shared loads 4.00 (4.00), in 16-byte copies 1048576 B,
//     DRAM 1.00 of the fewest
//   gemm_08_double_buffered_f32_and_rows 256x256x64 TN: stores 15.82 (100 %),
//     cp.async 16.00 (100 %), into shared 4.00 (4.00), shared loads 3.91 (3.91),
//     in 16-byte copies 1048576 B, DRAM 1.00 of the fewest
//   gemm_08_double_buffered_f32 128x128x2048 NN: 2 launches, DRAM 2.33 of the fewest
//     gemm_double_buffered_kernel: stores 16.00 (100 %), cp.async 6.40 (100 %),
//       into shared 2.40 (1.60), shared loads 4.00 (4.00), in 4-byte copies 4194304 B,
//       in 16-byte copies 4194304 B
//     gemm_fold_slices_kernel: loads 16.00 (100 %), stores 16.00 (100 %)

#include <array>
#include <atomic>
#include <cmath>

#include "lockstep/core/cuda/launch.h"
#include "lockstep/kernels/cuda/gemm/cluster_fold.cuh"
#include "lockstep/kernels/cuda/gemm/ladder.h"
#include "lockstep/kernels/cuda/gemm/quads.cuh"
#include "lockstep/kernels/cuda/gemm/slices.cuh"
#include "lockstep/kernels/cuda/gemm/tile_copier.cuh"
#include "lockstep/kernels/cuda/gemm/warp_lanes.cuh"

namespace lockstep::kernels::cuda {
namespace {

/// ROWS_ x COLUMNS_ results per block, of which each thread computes THREAD_ROWS_ x
/// THREAD_COLUMNS_; warps of 4 x 8 threads as in rung 7. BLOCKS_ of them share a multiprocessor.
template <int ROWS_, int COLUMNS_, int DEPTH_, int THREAD_ROWS_, int THREAD_COLUMNS_, int BLOCKS_>
struct Tiling {
  static constexpr int ROWS = ROWS_, COLUMNS = COLUMNS_, DEPTH = DEPTH_, BLOCKS = BLOCKS_;
  static constexpr int THREAD_ROWS = THREAD_ROWS_, THREAD_COLUMNS = THREAD_COLUMNS_;
  static constexpr int WARP_ROWS = 4 * THREAD_ROWS, WARP_COLUMNS = 8 * THREAD_COLUMNS;
  static constexpr int WARPS_ACROSS = COLUMNS / WARP_COLUMNS;
  static constexpr int THREADS = ROWS / WARP_ROWS * WARPS_ACROSS * 32;
  static constexpr int STAGES = 4;
  using CopierA = TileCopier<float, ROWS, DEPTH, THREADS, TileOrder::depth_rows>;
  using CopierB = TileCopier<float, COLUMNS, DEPTH, THREADS, TileOrder::depth_rows>;
  static constexpr std::size_t SHARED_BYTES =
      STAGES * (CopierA::SIZE + CopierB::SIZE) * sizeof(float);
};
using Large = Tiling<128, 128, 8, 16, 8, 2>;  // 128 threads
using Medium = Tiling<64, 64, 8, 8, 4, 4>;    // 128 threads
using Small = Tiling<32, 32, 16, 4, 4, 8>;    // 64 threads

/// The operands of one thread at one depth: quads of rows at 0, 16, ... and of columns at 0, 32,
/// ...
template <class Tile>
struct Fragments {
  float a[Tile::THREAD_ROWS], b[Tile::THREAD_COLUMNS];

  __device__ __forceinline__ void read(const float* a_row, const float* b_row) {
#pragma unroll
    for (int i = 0; i < Tile::THREAD_ROWS; i += 4) read_quad(a_row + i * 4, a + i);
#pragma unroll
    for (int j = 0; j < Tile::THREAD_COLUMNS; j += 4) read_quad(b_row + j * 8, b + j);
  }
};

/// sum += the products of one step; `a` and `b` are this thread's first elements of the two tiles.
template <class Tile>
__device__ __forceinline__ void multiply(const float* a, const float* b,
                                         float (&sum)[Tile::THREAD_ROWS][Tile::THREAD_COLUMNS]) {
  constexpr int ROW_A = Tile::CopierA::template ROW<false>;
  constexpr int ROW_B = Tile::CopierB::template ROW<false>;
  Fragments<Tile> fragments[2];
  fragments[0].read(a, b);
#pragma unroll
  for (int d = 0; d < Tile::DEPTH; ++d) {
    if (d + 1 < Tile::DEPTH) fragments[(d + 1) % 2].read(a + (d + 1) * ROW_A, b + (d + 1) * ROW_B);
    const Fragments<Tile>& now = fragments[d % 2];
#pragma unroll
    for (int i = 0; i < Tile::THREAD_ROWS; ++i)
#pragma unroll
      for (int j = 0; j < Tile::THREAD_COLUMNS; ++j)
        sum[i][j] = std::fma(now.a[i], now.b[j], sum[i][j]);
  }
}

/// blockIdx.x: the tile; blockIdx.y: the slice of K, which meets the others in the cluster, or
/// whose sums go to the y-th matrix in p.c. 16-byte loads where rows are aligned.
template <class Tile>
__global__ void __launch_bounds__(Tile::THREADS, Tile::BLOCKS)
    gemm_double_buffered_kernel(GemmProblem<float> p, const Access access) {
  using CopierA = typename Tile::CopierA;
  using CopierB = typename Tile::CopierB;
  constexpr int STAGES = Tile::STAGES;
  auto* const a_tiles = dynamic_shared<float[CopierA::SIZE]>();
  auto* const b_tiles = reinterpret_cast<float(*)[CopierB::SIZE]>(a_tiles + STAGES);

  const auto [row0, column0] = tile_origin(p.n, Tile::ROWS, Tile::COLUMNS);
  const std::int64_t depth0 = blockIdx.y * access.slice_depth;
  const std::int64_t depth_end =
      depth0 + access.slice_depth < p.k ? depth0 + access.slice_depth : p.k;
  const int steps = static_cast<int>(tiles(depth_end - depth0, Tile::DEPTH));
  CopierA a(operand_a(p), row0, depth0, access.a);
  CopierB b(operand_b(p), column0, depth0, access.b);
  const auto start = [&](int step) {
    const std::int64_t depth_left = depth_end - depth0 - step * std::int64_t{Tile::DEPTH};
    if (depth_left > 0) {
      a.start(a_tiles[step % STAGES], depth_left);
      b.start(b_tiles[step % STAGES], depth_left);
    }
    cp_async_commit();  // an empty group, at the end, keeps the count right
  };

  const int warp = static_cast<int>(threadIdx.x) / 32;
  const LanePlace lane = lane_place();
  const int row = warp / Tile::WARPS_ACROSS * Tile::WARP_ROWS + lane.row * 4;
  const int column = warp % Tile::WARPS_ACROSS * Tile::WARP_COLUMNS + lane.column * 4;

  // One block of those with the same rows of op(a) adds them up, a row per thread, from the tiles
  // that it has for its products anyway.
  static_assert(Tile::ROWS <= Tile::THREADS);
  const bool sums_rows = p.row_sums && column0 == 0 && threadIdx.x < Tile::ROWS;
  float row_sum = 0;

  float sum[Tile::THREAD_ROWS][Tile::THREAD_COLUMNS] = {};
#pragma unroll 1  // no need for more code
  for (int step = 0; step < STAGES - 1; ++step) start(step);
  for (int step = 0; step < steps; ++step) {
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    start(step + STAGES - 1);
    multiply<Tile>(a_tiles[step % STAGES] + row, b_tiles[step % STAGES] + column, sum);
    if (sums_rows)
#pragma unroll
      for (int d = 0; d < Tile::DEPTH; ++d)
        row_sum += a_tiles[step % STAGES][d * CopierA::template ROW<false> + threadIdx.x];
  }
  cp_async_wait<0>();

  if (access.in_cluster)
    return meet_in_cluster<Tile>(p, row0, column0, access.c, [&](auto& sums) {
      if (sums_rows) sums.rows[threadIdx.x] = row_sum;
#pragma unroll
      for (int i = 0; i < Tile::THREAD_ROWS; ++i)
#pragma unroll
        for (int j = 0; j < Tile::THREAD_COLUMNS; j += 4)
          *reinterpret_cast<float4*>(&sums.tile[row + i / 4 * 16 + i % 4][column + j * 8]) =
              make_float4(sum[i][j], sum[i][j + 1], sum[i][j + 2], sum[i][j + 3]);
    });
  take_slice(p);
  if (sums_rows) store_row_sum(p, row0 + threadIdx.x, row_sum);
#pragma unroll
  for (int i = 0; i < Tile::THREAD_ROWS; ++i)
#pragma unroll
    for (int j = 0; j < Tile::THREAD_COLUMNS; j += 4)
      store_quad(p, row0 + row + i / 4 * 16 + i % 4, column0 + column + j * 8, &sum[i][j],
                 access.c);
}

template <class Tile>
void run(const GemmProblem<float>& p, int slices, cudaStream_t stream) {
  with_tiles<Tile>(p, slices, stream, [&](const auto& sums, const Access& access, auto& shape) {
    lockstep::cuda::launch<gemm_double_buffered_kernel<Tile>>(shape, stream, sums, access);
  });
}

}  // namespace

namespace {

/// Asks the current device.
bool can_run_clusters() {
  if (device_attribute(cudaDevAttrComputeCapabilityMajor) < 9) return false;
  const auto* const kernel = reinterpret_cast<const void*>(gemm_double_buffered_kernel<Small>);
  cudaFuncAttributes attributes;
  lockstep::cuda::call("matmul", "cudaFuncGetAttributes",
                       cudaFuncGetAttributes(&attributes, kernel));
  if (attributes.ptxVersion < 90) return false;  // compiled for older GPUs
  // A part of a GPU (MIG) may be too small for eight blocks side by side.
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = cluster.val.clusterDim.z = 1;
  cluster.val.clusterDim.y = most_in_cluster;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1, most_in_cluster);
  config.blockDim = Small::THREADS;
  config.dynamicSmemBytes = Small::SHARED_BYTES;
  config.attrs = &cluster;
  config.numAttrs = 1;
  int clusters = 0;
  lockstep::cuda::call("matmul", "cudaOccupancyMaxActiveClusters",
                       cudaOccupancyMaxActiveClusters(&clusters, kernel, &config));
  return clusters > 0;
}

}  // namespace

bool has_clusters() {
  enum : int { unknown, no, yes };
  static std::array<std::atomic<int>, 64> answers{};  // by device
  int device = 0;
  lockstep::cuda::call("matmul", "cudaGetDevice", cudaGetDevice(&device));
  const auto at = static_cast<std::size_t>(device);
  if (at >= answers.size()) return can_run_clusters();
  if (answers[at] == unknown) answers[at] = can_run_clusters() ? yes : no;
  return answers[at] == yes;
}

void gemm_double_buffered(const GemmProblem<float>& p, const Plan& plan, cudaStream_t stream) {
  constexpr auto& speeds = double_buffered_speeds;
  static_assert(has_speed<Large>(speeds[0]) && speeds[0].resident == Large::BLOCKS &&
                has_speed<Medium>(speeds[1]) && speeds[1].resident == Medium::BLOCKS &&
                has_speed<Small>(speeds[2]) && speeds[2].resident == Small::BLOCKS);
  if (plan.tile == 0) return run<Large>(p, plan.slices, stream);
  if (plan.tile == 1) return run<Medium>(p, plan.slices, stream);
  run<Small>(p, plan.slices, stream);
}

}  // namespace lockstep::kernels::cuda
