#pragma once
/// Slices of K that meet in a cluster (slices.cuh says what slices are). Blocks of a cluster read
/// each other's shared memory: so the sums need no scratch memory, and no second kernel. For .cu
/// files only.
///
///       block 0        block 1        block 2        block 3     of a cluster: the same tile of c
///      slice 0        slice 1        slice 2        slice 3
///     +-------+      +-------+      +-------+      +-------+
///     |#      |      |#      |      |#      |      |#      |     sums, in shared memory
///     +-------+      +-------+      +-------+      +-------+
///      # + # + # + #  by block 0, other quads by block 1, ...    always in ascending order
///
/// Each result has the bits that the second kernel would give it.
///
/// Source: CUDA C++ Programming Guide, "Distributed Shared Memory".

#include <cluster_intrinsics.h>

#include "lockstep/kernels/cuda/gemm/quads.cuh"
#include "lockstep/kernels/cuda/gemm/slice_plan.h"

namespace lockstep::kernels::cuda {

/// A block's sums, where its cluster reads them. Rows are padded by 8 floats: then the pairs of
/// sums that mma leaves in the threads of half a warp, 4 rows by 8 columns, lie in different banks.
template <int ROWS, int COLUMNS>
struct ClusterSums {
  float tile[ROWS][COLUMNS + 8];
  float rows[ROWS];  ///< those of op(a)'s rows, if they are wanted
};

/// Which blocks of the cluster have the slices of a tile: those of rank first + s * step.
struct SlicesInCluster {
  int count, first, step;
  int own;  ///< the slice of this block
};

/// Finishes the tile of p that begins at (row0, column0), of which the blocks have `sums`. To be
/// called by THREADS threads of each of them, between two cluster_sync. `quads` is
/// aligned_results(p).
template <int THREADS, int ROWS, int COLUMNS, class T, class C>
__device__ __forceinline__ void fold_in_cluster(const GemmProblem<T, C>& p,
                                                const ClusterSums<ROWS, COLUMNS>& sums,
                                                const SlicesInCluster& slices, std::int64_t row0,
                                                std::int64_t column0, int thread, bool quads) {
  constexpr int ACROSS = COLUMNS / 4;  // quads
#pragma unroll 1
  for (int i = slices.own * THREADS + thread; i < ROWS * ACROSS; i += slices.count * THREADS) {
    const int row = i / ACROSS, column = i % ACROSS * 4;
    if (row0 + row >= p.m || column0 + column >= p.n) continue;
    const auto* const place = reinterpret_cast<const float4*>(&sums.tile[row][column]);
    float4 loaded[most_in_cluster];
#pragma unroll
    for (int s = 0; s < most_in_cluster; ++s)
      if (s < slices.count)
        loaded[s] = hopper::read_in_block(place, slices.first + s * slices.step);
    float sum[4] = {loaded[0].x, loaded[0].y, loaded[0].z, loaded[0].w};
#pragma unroll
    for (int s = 1; s < most_in_cluster; ++s)
      if (s < slices.count) {
        sum[0] += loaded[s].x, sum[1] += loaded[s].y;
        sum[2] += loaded[s].z, sum[3] += loaded[s].w;
      }
    store_quad(p, row0 + row, column0 + column, sum, quads);
  }
  if (p.row_sums == nullptr || column0 > 0) return;
#pragma unroll 1
  for (int row = slices.own * THREADS + thread; row < ROWS; row += slices.count * THREADS) {
    float sum = hopper::read_in_block(&sums.rows[row], slices.first);
    for (int s = 1; s < slices.count; ++s)
      sum += hopper::read_in_block(&sums.rows[row], slices.first + s * slices.step);
    store_row_sum(p, row0 + row, sum);
  }
}

/// For a block of rungs 8 to 10, at its end: put(sums) stores this block's in the shared memory in
/// which its tiles were. blockIdx.y is the slice, and its place in the cluster.
template <class Tile, class T, class C, class Put>
__device__ __forceinline__ void meet_in_cluster(const GemmProblem<T, C>& p, std::int64_t row0,
                                                std::int64_t column0, bool quads, Put&& put) {
  auto& sums = *dynamic_shared<ClusterSums<Tile::ROWS, Tile::COLUMNS>>();
  __syncthreads();  // no thread reads the last tiles any more
  put(sums);
  hopper::cluster_sync();
  const SlicesInCluster slices{static_cast<int>(gridDim.y), 0, 1, static_cast<int>(blockIdx.y)};
  fold_in_cluster<Tile::THREADS>(p, sums, slices, row0, column0, static_cast<int>(threadIdx.x),
                                 quads);
  hopper::cluster_sync();  // no block leaves while another one reads
}

}  // namespace lockstep::kernels::cuda
