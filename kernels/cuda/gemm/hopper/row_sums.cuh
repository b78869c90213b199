#pragma once
/// The sums of op(A)'s rows, which linear_gradients (kernels/matmul.h) wants beside the product.
///
/// The tensor cores leave the threads of a warpgroup time: while they multiply, each warp reads
/// the 16 rows of the panel for which it has sums, and adds them up, in the order of k. How the 32
/// lanes share a panel decides that no two meet in a bank (panels.cuh: chunk c of row r lies at
/// c xor (r mod 8)):
///
///   K-major    lane l: half l % 2 of row l / 2, in four reads of 16 bytes. The 8 lanes that read
///              at a time have four rows and the chunks i and 4 + i: 8 different places
///   MN-major   lane l: the rows 2 (l % 8) and the next, in 16 reads of 4 bytes; of each 8 k, 2
///              (l / 8) and the next. The four k that are read at a time are even, or odd, and so
///              their chunks, 2 warp and the next, lie at 8 different places

#include "lockstep/kernels/cuda/gemm/hopper/tile.cuh"

namespace lockstep::kernels::cuda {
namespace {

/// Those of a warp: T are the panel's elements.
template <class T, bool mn_major>
struct RowSums;

template <>
struct RowSums<float, false> {
  static constexpr int LANE_ROWS = 1;  ///< per lane
  float sum[LANE_ROWS] = {};

  __device__ __forceinline__ void add(const unsigned char* panel, int warp) {
    const int lane = threadIdx.x % 32, row = 16 * warp + lane / 2;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int chunk = (4 * (lane % 2) + i) ^ (row % 8);
      const auto x = *reinterpret_cast<const float4*>(panel + row * hw::ROW_BYTES + 16 * chunk);
      sum[0] = sum[0] + x.x + x.y + x.z + x.w;
    }
  }
  /// The first of this lane's rows, after its sums are those of all lanes; -1: another lane has it.
  __device__ __forceinline__ int finish(int warp) {
    const int lane = threadIdx.x % 32;
    sum[0] += __shfl_xor_sync(0xffffffff, sum[0], 1);
    return lane % 2 == 0 ? 16 * warp + lane / 2 : -1;
  }
};

template <class T>
struct RowSums<T, true> {
  static constexpr int LANE_ROWS = 2;
  float sum[LANE_ROWS] = {};

  __device__ __forceinline__ void add(const unsigned char* panel, int warp) {
    const int lane = threadIdx.x % 32, column = 16 * warp + 2 * (lane % 8);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int row = i / 2 * 8 + lane / 8 * 2 + i % 2;
      const int chunk = (column / 8) ^ (row % 8);
      const auto pair = *reinterpret_cast<const typename Element<T>::Pair*>(
          panel + row * hw::ROW_BYTES + 16 * chunk + 2 * (column % 8));
      const float2 x = Element<T>::floats(pair);
      sum[0] += x.x, sum[1] += x.y;
    }
  }
  __device__ __forceinline__ int finish(int warp) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < LANE_ROWS; ++i) {
      sum[i] += __shfl_xor_sync(0xffffffff, sum[i], 8);
      sum[i] += __shfl_xor_sync(0xffffffff, sum[i], 16);
    }
    return lane < 8 ? 16 * warp + 2 * lane : -1;
  }
};

/// Never asked for: linear_gradients has A transposed, and f32 is turned over.
template <class T>
struct RowSums<T, false> {
  static constexpr int LANE_ROWS = 1;
  float sum[LANE_ROWS] = {};
  __device__ void add(const unsigned char*, int) {}
  __device__ int finish(int) { return -1; }
};

/// put(row of the panel, its sum) for those that a lane has in the end.
template <class T, bool mn_major, class Put>
__device__ __forceinline__ void each_row(RowSums<T, mn_major>& sums, int warp, Put&& put) {
  const int own = sums.finish(warp);
  if (own < 0) return;
#pragma unroll
  for (int i = 0; i < RowSums<T, mn_major>::LANE_ROWS; ++i) put(own + i, sums.sum[i]);
}

}  // namespace
}  // namespace lockstep::kernels::cuda
