#pragma once
/// The kernel of rungs 11 and 12: the two differ in element type only, and in bytes they are one.
/// 11_hopper_bf16.cu tells what it does and why; panels.cuh tells how operands lie in memory,
/// hopper_intrinsics.h holds the instructions, tile.cuh what is in shared memory, store.cuh how
/// results leave, and plan.cpp chooses the tiles.

#include <algorithm>

#include "lockstep/core/cuda/launch.h"
#include "lockstep/kernels/cuda/gemm/hopper/row_sums.cuh"
#include "lockstep/kernels/cuda/gemm/hopper/store.cuh"
#include "lockstep/kernels/cuda/gemm/hopper/tile.cuh"
#include "lockstep/kernels/cuda/gemm/slices.cuh"

namespace lockstep::kernels::cuda {
namespace {

/// Elements in the 128 bytes of a block of k.
template <class T>
constexpr int K_WIDTH = hw::ROW_BYTES / sizeof(T);

// What does not depend on a parameter of the kernel does not have it, and the large functions are
// not __forceinline__: for the simulator they are compiled once for several of the 64 kernels. For
// GPUs they are inlined all the same: otherwise kernels had a stack (docs/kernels.md).

/// One thread starts all copies, for blocks of `width` elements of k. Coordinates are (inner,
/// outer) of the matrix in memory.
template <class Tile, int width, bool a_mn_major, bool b_mn_major>
__device__ void produce(Ring<Tile>& ring, const CUtensorMap& a, const CUtensorMap& b,
                        const Extent& extent, const ClusterPlace& in_cluster) {
  constexpr int OWN_PANELS_B = Tile::PANELS_B / Tile::CLUSTER;  // other blocks send theirs here
  const auto everybody =
      static_cast<std::uint16_t>(((1 << Tile::CLUSTER) - 1) << in_cluster.slice * Tile::CLUSTER);
  const Schedule<Tile> schedule(extent);
  RingPlace<Tile::STAGES> place;
  const int clusters = gridDim.x / in_cluster.blocks;
  for (int i = blockIdx.x / in_cluster.blocks; i < schedule.count(); i += clusters) {
    const Work work = schedule.work(i, in_cluster);
    for (int k_block = work.first_k_block; k_block < work.end_k_block; ++k_block, place.advance()) {
      // In the first round no consumer has read anything yet: phase "-1" is taken for complete.
      hw::wait(ring.empty[place.stage], place.parity ^ 1);
      hw::Barrier& full = ring.full[place.stage];
      hw::arrive_expecting(full, sizeof(Stage<Tile>));
      Stage<Tile>& stage = ring.stages[place.stage];
      const int at_k = k_block * width;
#pragma unroll
      for (int panel = 0; panel < Tile::PANELS_A; ++panel) {
        const int row = work.row + panel * hw::PANEL_ROWS;
        hw::load_panel(stage.a[panel], a, a_mn_major ? row : at_k, a_mn_major ? at_k : row, full);
      }
#pragma unroll
      for (int own = 0; own < OWN_PANELS_B; ++own) {
        const int panel = in_cluster.member * OWN_PANELS_B + own;
        const int column = work.column + panel * hw::PANEL_ROWS;
        const int inner = b_mn_major ? column : at_k, outer = b_mn_major ? at_k : column;
        if constexpr (Tile::CLUSTER > 1)
          hw::load_panel_to(everybody, stage.b[panel], b, inner, outer, full);
        else
          hw::load_panel(stage.b[panel], b, inner, outer, full);
      }
    }
  }
}

/// This warp has read a stage: it says so in every block of its slice, for each sends to all.
template <class Tile>
__device__ __forceinline__ void release(Ring<Tile>& ring, int stage, int slice) {
  const std::uint32_t lane = threadIdx.x % 32;
  if (lane < Tile::CLUSTER) hw::arrive_in_block(ring.empty[stage], slice * Tile::CLUSTER + lane);
}

/// sum = the products of a part of the work, by one warpgroup: 64 rows of the block's tile of A
/// times its tile of B. With `sums_rows`, rows += the sums of this warp's rows of A.
template <class Tile, class T, bool a_mn_major, bool b_mn_major>
__device__ void multiply(hw::Accumulators<Tile::COLUMNS>& sum, RowSums<T, a_mn_major>& rows,
                         bool sums_rows, Ring<Tile>& ring, const Work& work,
                         RingPlace<Tile::STAGES>& place, int slice, int consumer) {
  constexpr int steps = hw::ROW_BYTES / 32;  // wgmmas over the k of one stage
#pragma unroll
  for (int j = 0; j < Tile::COLUMNS / 8; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[j][i] = 0.0f;

  int before = 0;
  for (int k_block = work.first_k_block; k_block < work.end_k_block; ++k_block, place.advance()) {
    hw::wait(ring.full[place.stage], place.parity);
    const Stage<Tile>& stage = ring.stages[place.stage];
    const std::uint64_t a = hw::descriptor<a_mn_major>(stage.a[consumer]);
    const std::uint64_t b = hw::descriptor<b_mn_major>(stage.b[0]);
    hw::pin(sum);
    hw::fence_products();
#pragma unroll
    for (int step = 0; step < steps; ++step)
      hw::issue_product<T, a_mn_major, b_mn_major>(sum, a + step * hw::next_step<a_mn_major>,
                                                   b + step * hw::next_step<b_mn_major>);
    hw::commit_products();
    hw::pin(sum);
    if (sums_rows) rows.add(stage.a[consumer], threadIdx.x / 32 % 4);
    // The tensor cores go on with this block while we see that the one before is finished.
    hw::wait_products<1>();
    if (k_block > work.first_k_block) release(ring, before, slice);
    before = place.stage;
  }
  hw::wait_products<0>();
  hw::pin(sum);
  release(ring, before, slice);
}

/// A cluster adds up the slices of its tile, which is its only one: each block's sums go where its
/// operands were. The cluster meets three times, the last time at the kernel's end. (The first time
/// its own block would do for each, but __syncthreads is for threads at one place of the code.)
template <class Tile, class T, bool a_mn_major, class C>
__device__ void meet_with_slices(hw::Accumulators<Tile::COLUMNS>& sum, RowSums<T, a_mn_major>& rows,
                                 bool sums_rows, Ring<Tile>& ring, const Output<C>& out,
                                 const Work& work, const ClusterPlace& in_cluster, int consumer) {
  hw::cluster_sync();  // all operands have been read
  auto& sums = reinterpret_cast<TileSums<Tile>&>(ring.stages);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  if (sums_rows)
    each_row(rows, warp,
             [&](int row, float row_sum) { sums.rows[consumer * hw::PANEL_ROWS + row] = row_sum; });
#pragma unroll
  for (int j = 0; j < Tile::COLUMNS / 8; ++j)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = consumer * hw::PANEL_ROWS + warp * 16 + half * 8 + lane / 4;
      *reinterpret_cast<float2*>(&sums.tile[row][j * 8 + lane % 4 * 2]) =
          make_float2(sum[j][half * 2], sum[j][half * 2 + 1]);
    }
  hw::cluster_sync();
  const SlicesInCluster slices{out.extent.slices, in_cluster.member, Tile::CLUSTER,
                               in_cluster.slice};
  fold_in_cluster<Tile::CONSUMERS * 128>(out.problem, sums, slices, work.row, work.column,
                                         consumer * 128 + static_cast<int>(threadIdx.x) % 128,
                                         out.quads);
}

/// A warpgroup computes its 64 rows of each of the block's tiles.
template <class Tile, class T, bool a_mn_major, bool b_mn_major, class C>
__device__ void consume(Shared<Tile, C>& shared, const Output<C>& out,
                        const ClusterPlace& in_cluster, int consumer) {
  const int warp = threadIdx.x / 32 % 4;  // of its warpgroup
  const int own = consumer * 4 + warp;
  const Schedule<Tile> schedule(out.extent);
  RingPlace<Tile::STAGES> place;
  const int clusters = gridDim.x / in_cluster.blocks;
  for (int i = blockIdx.x / in_cluster.blocks; i < schedule.count(); i += clusters) {
    const Work work = schedule.work(i, in_cluster);
    const int row = work.row + consumer * hw::PANEL_ROWS;
    const auto& p = out.problem;
    Bias<Tile> bias;
    if (p.bias != nullptr && out.extent.slices == 1) bias.fetch(out, work.column);
    hw::Accumulators<Tile::COLUMNS> sum;
    RowSums<T, a_mn_major> rows;
    const bool sums_rows = p.row_sums != nullptr && work.column == 0;
    multiply<Tile, T, a_mn_major, b_mn_major>(sum, rows, sums_rows, shared.ring, work, place,
                                              in_cluster.slice, consumer);
    if (out.extent.slices > 1)
      return meet_with_slices(sum, rows, sums_rows, shared.ring, out, work, in_cluster, consumer);
    if (sums_rows)
      each_row(rows, warp, [&](int r, float row_sum) { store_row_sum(p, row + r, row_sum); });
    if (p.bias != nullptr) bias.spread(shared.bias[own]);
    store<Tile>(sum, shared.patches[own], shared.bias[own], out, row + warp * 16, work.column);
  }
}

/// c (m, n) (+)= op(A) op(B) + bias; `a` and `b` describe the matrices as they lie in memory, boxes
/// are panels. As many blocks as fit the GPU take tile after tile; with slices of k there is a
/// cluster for each tile. Panels come by TMA; products by wgmma.
template <class Tile, class T, bool transpose_a, bool transpose_b, class C>
__global__ void __launch_bounds__(Tile::THREADS, Tile::BLOCKS)
    hopper_product_kernel(const __grid_constant__ CUtensorMap a,
                          const __grid_constant__ CUtensorMap b, Output<C> out) {
  // In memory, rows of A go along k, unless transposed; rows of B do when it is transposed.
  constexpr bool a_mn_major = transpose_a;
  constexpr bool b_mn_major = !transpose_b;
  Shared<Tile, C>& shared = shared_memory<Tile, C>();
  const int slices = out.extent.slices;
  const bool alone = Tile::CLUSTER == 1 && slices == 1;
  const int rank = alone ? 0 : hw::cluster_rank();
  const ClusterPlace in_cluster{rank / Tile::CLUSTER, rank % Tile::CLUSTER, Tile::CLUSTER * slices};
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Tile::STAGES; ++stage) {
      hw::init(shared.ring.full[stage], 1);
      hw::init(shared.ring.empty[stage], Tile::CLUSTER * Tile::CONSUMER_WARPS);
    }
    hw::fence_init();
  }
  __syncwarp();
  alone ? __syncthreads() : hw::cluster_sync();

  // From thread 0 of the warp, so that the compiler knows: all its threads have the same value.
  const int warpgroup = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 128, 0);
  if (warpgroup == 0) {
    if constexpr (Tile::MOVES_REGISTERS) hw::give_registers<Tile::PRODUCER_REGISTERS>();
    if (threadIdx.x == 0)
      produce<Tile, K_WIDTH<T>, a_mn_major, b_mn_major>(shared.ring, a, b, out.extent, in_cluster);
    __syncwarp();
    if (slices > 1) {  // as in meet_with_slices
      hw::cluster_sync();
      hw::cluster_sync();
    }
  } else {
    if constexpr (Tile::MOVES_REGISTERS) hw::take_registers<Tile::CONSUMER_REGISTERS>();
    consume<Tile, T, a_mn_major, b_mn_major>(shared, out, in_cluster, warpgroup - 1);
  }
  // No block leaves while a neighbour may still write to its shared memory, or read there.
  if (!alone) hw::cluster_sync();
}

// ---- host --------------------------------------------------------------------------------------

/// The driver's function that writes a tensor map, found without linking to the driver.
PFN_cuTensorMapEncodeTiled_v12000 tensor_map_encoder() {
  static const auto encoder = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
    lockstep::cuda::call("gemm_hopper", "cudaGetDriverEntryPointByVersion",
                         cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                          12000, cudaEnableDefault, &result));
    check<DeviceError>(result == cudaDriverEntryPointSuccess,
                       "[gemm_hopper] the driver has no cuTensorMapEncodeTiled (result {})",
                       static_cast<int>(result));
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
  }();
  return encoder;
}

/// Describes a row-major (rows, inner) matrix with rows `pitch` elements apart to the copy engine,
/// which takes it panel by panel: 128 bytes of 64 rows. For float, the engine also rounds to tf32
/// as it copies (the tensor cores themselves would truncate).
template <class T>
CUtensorMap tensor_map(const T* matrix, std::int64_t rows, std::int64_t inner, std::int64_t pitch) {
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(inner), static_cast<cuuint64_t>(rows)};
  const cuuint64_t row_bytes[] = {static_cast<cuuint64_t>(pitch) * sizeof(T)};
  const cuuint32_t box[] = {K_WIDTH<T>, hw::PANEL_ROWS};
  const cuuint32_t every_element[] = {1, 1};
  CUtensorMap map;
  const CUresult result = tensor_map_encoder()(
      &map, Element<T>::map_type, 2, const_cast<T*>(matrix), sizes, row_bytes, box, every_element,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  check<DeviceError>(result == CUDA_SUCCESS,
                     "[gemm_hopper] cuTensorMapEncodeTiled refuses a ({}, {}) matrix: error {}",
                     rows, inner, static_cast<int>(result));
  return map;
}

/// Starts the kernel: as many blocks as the GPU has room for, or as there is work. A cluster that
/// adds up slices has one tile, for its sums take the place of operands.
template <class Tile, class T, bool transpose_a, bool transpose_b, class C>
void launch_tiles(const CUtensorMap& a, const CUtensorMap& b, const Output<C>& out,
                  cudaStream_t stream) {
  const int room = device_attribute(cudaDevAttrMultiProcessorCount) * Tile::BLOCKS / Tile::CLUSTER;
  const int tiles = Schedule<Tile>(out.extent).count(), slices = out.extent.slices;
  const unsigned cluster = Tile::CLUSTER * slices;
  lockstep::cuda::launch<hopper_product_kernel<Tile, T, transpose_a, transpose_b, C>>(
      {.grid = (slices > 1 ? tiles : std::min(room, tiles)) * cluster,
       .block = Tile::THREADS,
       .shared_bytes = shared_bytes<Tile, C>,
       .cluster = cluster},
      stream, a, b, out);
}

/// Computes p, whose matrices `a` and `b` describe as they lie, as `plan` says.
template <class T, bool transpose_a, bool transpose_b, class C>
void run_plan(const GemmProblem<T, C>& p, const CUtensorMap& a, const CUtensorMap& b,
              const HopperPlan& plan, cudaStream_t stream) {
  const std::int64_t k_blocks = tiles(p.k, K_WIDTH<T>);
  const Slices slices = hopper_slices(plan, k_blocks);
  const Output<C> out{{.m = p.m,
                       .n = p.n,
                       .k = p.k,
                       .a = nullptr,
                       .transpose_a = transpose_a,
                       .b = nullptr,
                       .transpose_b = transpose_b,
                       .c = p.c,
                       .accumulate = p.accumulate,
                       .bias = p.bias,
                       .relu = p.relu,
                       .positive = p.positive,
                       .row_sums = p.row_sums,
                       .accumulate_row_sums = p.accumulate_row_sums},
                      aligned_results(p),
                      {static_cast<int>(p.m), static_cast<int>(p.n), static_cast<int>(k_blocks),
                       slices.count, static_cast<int>(slices.depth)}};
  const auto start = [&]<HopperTile tile>(std::integral_constant<HopperTile, tile>) {
    launch_tiles<HopperTiling<tile>, T, transpose_a, transpose_b>(a, b, out, stream);
  };
  switch (plan.tile) {
    case HopperTile::wide: return start(std::integral_constant<HopperTile, HopperTile::wide>{});
    case HopperTile::square: return start(std::integral_constant<HopperTile, HopperTile::square>{});
    case HopperTile::flat: return start(std::integral_constant<HopperTile, HopperTile::flat>{});
    case HopperTile::small: return start(std::integral_constant<HopperTile, HopperTile::small>{});
  }
}

}  // namespace
}  // namespace lockstep::kernels::cuda
