#pragma once
/// Products whose sum over K is cut into slices ("split-K"), for rungs 8 and later. For .cu files
/// only.
///
/// A narrow product has too few tiles of results for all multiprocessors, but often a long K. Then
/// several blocks share a tile: each sums up one slice of K. On GPUs that have clusters of blocks,
/// up to 8 slices meet in one, and the kernel itself adds them up (cluster_fold.cuh). Elsewhere
/// each goes into a matrix of its own in scratch memory, and a second kernel adds them up. Either
/// way the order is ascending, and the bits are the same:
///
///       K    0       depth    2 depth   3 depth  k
///            |--------|--------|--------|-----|
///            slice 0  slice 1  slice 2  slice 3         c = ((0 + 1) + 2) + 3, then the rest
///
/// So the bits of a result depend on how K is cut. slice_plan.h chooses.
///
/// Source: CUTLASS documentation, "Efficient GEMM in CUDA": split-K.

#include <fmt/format.h>

#include "lockstep/core/cuda/launch.h"
#include "lockstep/kernels/cuda/common.cuh"
#include "lockstep/kernels/cuda/gemm/cluster_fold.cuh"
#include "lockstep/kernels/cuda/gemm/operand.cuh"
#include "lockstep/kernels/cuda/gemm/quads.cuh"
#include "lockstep/kernels/cuda/gemm/slice_plan.h"

namespace lockstep::kernels::cuda {

/// Scratch memory in the order of a stream. Throws DeviceError if there is not enough.
class Scratch {
 public:
  Scratch(std::int64_t floats, cudaStream_t stream) : stream_(stream) {
    const std::size_t bytes = static_cast<std::size_t>(floats) * sizeof(float);
    const cudaError_t error = cudaMallocAsync(&data_, bytes, stream);
    if (error != cudaSuccess)
      lockstep::cuda::failed(
          "matmul", fmt::format("cudaMallocAsync of {} bytes of scratch memory", bytes), error);
  }
  ~Scratch() { (void)cudaFreeAsync(data_, stream_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  float* data() const { return static_cast<float*>(data_); }

 private:
  void* data_ = nullptr;
  cudaStream_t stream_;
};

/// sum += `count` slices, the first at x: WIDTH neighbours of each, `size` apart. Several loads are
/// under way at a time; the additions keep their order.
template <int WIDTH>
__device__ __forceinline__ void add_slices(float (&sum)[WIDTH], const float* x, std::int64_t size,
                                           int count) {
  constexpr int AT_ONCE = 8;
  const auto add = [&sum](const Pack<float, WIDTH>& slice) {
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) sum[i] += slice[i];
  };
  int slice = 0;
#pragma unroll 1
  for (; slice + AT_ONCE <= count; slice += AT_ONCE) {
    Pack<float, WIDTH> loaded[AT_ONCE];
#pragma unroll
    for (int s = 0; s < AT_ONCE; ++s) loaded[s] = load_pack<WIDTH>(x + (slice + s) * size);
#pragma unroll
    for (int s = 0; s < AT_ONCE; ++s) add(loaded[s]);
  }
  Pack<float, WIDTH> loaded[AT_ONCE - 1];  // the rest at once, too: most sums have only this
#pragma unroll
  for (int s = 0; s < AT_ONCE - 1; ++s)
    if (slice + s < count) loaded[s] = load_pack<WIDTH>(x + (slice + s) * size);
#pragma unroll
  for (int s = 0; s < AT_ONCE - 1; ++s)
    if (slice + s < count) add(loaded[s]);
}

/// c = the sum of the slices, each (m, n), in ascending order, and what the epilogue makes of it.
/// One thread per WIDTH results of a row; more than one requires aligned slices, aligned_results(p)
/// and an n that is a multiple of WIDTH. Behind the slices of c lie those of p.row_sums, each (m,):
/// one thread per sum, behind the others.
template <class T, class C, int WIDTH>
__global__ void gemm_fold_slices_kernel(const GemmProblem<T, C> p, const float* slices, int count) {
  const std::int64_t thread = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x;
  const std::int64_t i = thread * WIDTH, size = p.m * p.n;
  if (i >= size) {
    const std::int64_t row = thread - divide_up(size, WIDTH);
    if (p.row_sums == nullptr || row >= p.m) return;
    const float* const first = slices + count * size + row;
    float sum[1] = {*first};
    add_slices(sum, first + p.m, p.m, count - 1);
    return store_row_sum(p, row, sum[0]);
  }
  float sum[WIDTH];
  const auto first = load_pack<WIDTH>(slices + i);
#pragma unroll
  for (int j = 0; j < WIDTH; ++j) sum[j] = first[j];
  add_slices(sum, slices + i + size, size, count - 1);
  finish<WIDTH>(p, i / p.n, i % p.n, sum);
  Pack<C, WIDTH> result;
#pragma unroll
  for (int j = 0; j < WIDTH; ++j) result[j] = convert<C>(sum[j]);
  store_pack(p.c + i, result);
}

/// An attribute of the current device.
inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  lockstep::cuda::call("matmul", "cudaGetDevice", cudaGetDevice(&device));
  lockstep::cuda::call("matmul", "cudaDeviceGetAttribute",
                       cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}

/// Whether the current device has clusters of blocks, and rungs 8 to 10 were compiled for such.
/// (08_double_buffered.cu)
bool has_clusters();

/// p for the blockIdx.y-th slice alone.
template <class T, class C>
__device__ __forceinline__ void take_slice(GemmProblem<T, C>& p) {
  p.c += blockIdx.y * p.m * p.n;
  if (p.row_sums) p.row_sums += blockIdx.y * p.m;
}

/// Finishes p from `count` slices in scratch memory. Small blocks: also few results should reach
/// all multiprocessors.
template <class T, class C>
void fold_slices(const GemmProblem<T, C>& p, const float* slices, int count, cudaStream_t stream) {
  constexpr int BLOCK = 128;
  const auto start = [&](auto width) {
    constexpr int WIDTH = decltype(width)::value;
    lockstep::cuda::launch<gemm_fold_slices_kernel<T, C, WIDTH>>(
        {.grid = blocks_for(p.m * p.n + (p.row_sums ? p.m * WIDTH : 0), BLOCK * WIDTH),
         .block = BLOCK},
        stream, p, slices, count);
  };
  if (aligned_results(p))
    start(std::integral_constant<int, 4>{});
  else
    start(std::integral_constant<int, 1>{});
}

/// Finishes p by `count` slices: launch(problem) starts the kernel that computes all of them, and
/// puts the s-th slice's sums into the matrix problem.c + s * m * n, and those of rows at
/// problem.row_sums + s * m. One slice goes straight to c;
/// more go to scratch memory, as f32, and from there to c.
template <class T, class C, class F>
void with_slices(const GemmProblem<T, C>& p, int count, cudaStream_t stream, F&& launch) {
  if (count == 1) return launch(p);
  const Scratch scratch(count * p.m * (p.n + (p.row_sums ? 1 : 0)), stream);
  launch(
      GemmProblem<T, float>{.m = p.m,
                            .n = p.n,
                            .k = p.k,
                            .a = p.a,
                            .transpose_a = p.transpose_a,
                            .b = p.b,
                            .transpose_b = p.transpose_b,
                            .c = scratch.data(),
                            .accumulate = false,
                            .row_sums = p.row_sums ? scratch.data() + count * p.m * p.n : nullptr,
                            .a_f32 = p.a_f32,
                            .b_f32 = p.b_f32});
  fold_slices(p, static_cast<const float*>(scratch.data()), count, stream);
}

/// What of a product can be accessed by 16 bytes (a, b), and by four elements (c); how K is cut,
/// and whether the slices meet in a cluster.
struct Access {
  bool a, b, c;
  std::int64_t slice_depth;
  bool in_cluster;
};

/// Whether a row of plan_product's table is about this size of tiles.
template <class Tile>
constexpr bool has_speed(const TileSpeed& speed) {
  return speed.rows == Tile::ROWS && speed.columns == Tile::COLUMNS && speed.depth == Tile::DEPTH;
}

/// The same for rungs 8 to 10: launch(problem, access, shape), where blockIdx.x is the tile and
/// blockIdx.y the slice. `wanted` is a Plan's.
template <class Tile, class T, class C, class F>
void with_tiles(const GemmProblem<T, C>& p, int wanted, cudaStream_t stream, F&& launch) {
  const Slices slices = cut_depth(p.k, wanted, Tile::DEPTH, shortest_slice * Tile::DEPTH);
  const auto count = static_cast<unsigned>(slices.count);
  const unsigned tiles = tile_count(p, Tile::ROWS, Tile::COLUMNS);
  const Folding folding{p.m, p.n, count, tiles, Tile::ROWS * Tile::COLUMNS};
  const auto start = [&](const auto& sums, bool in_cluster) {
    lockstep::cuda::LaunchShape shape{
        .grid = dim3(tiles, count), .block = Tile::THREADS, .shared_bytes = Tile::SHARED_BYTES};
    if (in_cluster) {
      shape.cluster = dim3(1, count);
      shape.shared_bytes =
          std::max(Tile::SHARED_BYTES, sizeof(ClusterSums<Tile::ROWS, Tile::COLUMNS>));
    }
    launch(sums,
           Access{aligned_a(p), aligned_b(p), aligned_results(sums), slices.depth, in_cluster},
           shape);
  };
  if (folding.prefers_cluster() && has_clusters())
    start(p, true);
  else
    with_slices(p, slices.count, stream, [&](const auto& sums) { start(sums, false); });
}

}  // namespace lockstep::kernels::cuda
