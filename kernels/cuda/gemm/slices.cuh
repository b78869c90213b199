#pragma once
/// Products whose sum over K is cut into slices ("split-K"), for rungs 8 and later. For .cu files
/// only.
///
/// A narrow product has too few tiles of results for all multiprocessors, but often a long K. Then
/// several blocks share a tile: each sums up one slice of K, into a matrix of its own in scratch
/// memory. A second kernel adds the slices up, always in ascending order:
///
///       K    0       depth    2 depth   3 depth  k
///            |--------|--------|--------|-----|
///            slice 0  slice 1  slice 2  slice 3         c = ((0 + 1) + 2) + 3, then bias or c
///
/// So the bits of a result depend on how K is cut. To be the same on every GPU the cut must depend
/// on the problem's sizes alone, and never on the number of multiprocessors.
///
/// Source: CUTLASS documentation, "Efficient GEMM in CUDA": split-K.

#include <algorithm>
#include <cstddef>

#include "lockstep/core/cuda/launch.h"
#include "lockstep/kernels/cuda/common.cuh"
#include "lockstep/kernels/cuda/gemm/operand.cuh"

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
  const std::int64_t depth = tiles(tiles(k, step), static_cast<int>(most)) * step;
  return {depth, static_cast<int>((k + depth - 1) / depth)};
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
  const std::int64_t blocks = tiles(m, tile.rows) * tiles(n, tile.columns) * slices.count;
  const std::int64_t each = (blocks + processors - 1) / processors;
  const std::int64_t steps = tiles(slices.depth, tile.depth);
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

/// Scratch memory in the order of a stream.
class Scratch {
 public:
  Scratch(std::int64_t floats, cudaStream_t stream) : stream_(stream) {
    const std::size_t bytes = static_cast<std::size_t>(floats) * sizeof(float);
    lockstep::cuda::call("matmul", "cudaMallocAsync", cudaMallocAsync(&data_, bytes, stream));
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

/// c = the sum of the slices, each (m, n), in ascending order. One thread per WIDTH results of a
/// row; more than one requires aligned slices, c and bias, and an n that is a multiple of WIDTH.
template <class T, class C, int WIDTH>
__global__ void gemm_fold_slices_kernel(const GemmProblem<T, C> p, const float* slices, int count) {
  const std::int64_t i = (blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x) * WIDTH,
                     size = p.m * p.n;
  if (i >= size) return;
  float sum[WIDTH];
  const auto first = load_pack<WIDTH>(slices + i);
#pragma unroll
  for (int j = 0; j < WIDTH; ++j) sum[j] = first[j];
  add_slices(sum, slices + i + size, size, count - 1);
  const auto add = [&sum](const Pack<C, WIDTH>& x) {
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) sum[j] += convert<float>(x[j]);
  };
  if (p.bias) add(load_pack<WIDTH>(p.bias + i % p.n));
  if (p.accumulate) add(load_pack<WIDTH>(p.c + i));
  Pack<C, WIDTH> result;
#pragma unroll
  for (int j = 0; j < WIDTH; ++j) result[j] = convert<C>(sum[j]);
  store_pack(p.c + i, result);
}

/// Finishes p from `count` slices in scratch memory. Small blocks: also few results should reach
/// all multiprocessors.
template <class T, class C>
void fold_slices(const GemmProblem<T, C>& p, const float* slices, int count, cudaStream_t stream) {
  constexpr int BLOCK = 128;
  const auto start = [&](auto width) {
    constexpr int WIDTH = decltype(width)::value;
    lockstep::cuda::launch<gemm_fold_slices_kernel<T, C, WIDTH>>(
        {.grid = blocks_for(p.m * p.n, BLOCK * WIDTH), .block = BLOCK}, stream, p, slices, count);
  };
  if (p.n % 4 == 0 && is_aligned<4>(p.c) && is_aligned<4>(p.bias))
    start(std::integral_constant<int, 4>{});
  else
    start(std::integral_constant<int, 1>{});
}

/// Calls launch(problem) for the kernel that computes all slices: slice s of a problem's sum goes
/// to the matrix problem.c + s * m * n. One slice: straight into c. More: into scratch memory, as
/// f32, and from there into c.
template <class T, class C, class F>
void with_slices(const GemmProblem<T, C>& p, int count, cudaStream_t stream, F&& launch) {
  if (count == 1) return launch(p);
  const Scratch scratch(count * p.m * p.n, stream);
  launch(GemmProblem<T, float>{.m = p.m,
                               .n = p.n,
                               .k = p.k,
                               .a = p.a,
                               .transpose_a = p.transpose_a,
                               .b = p.b,
                               .transpose_b = p.transpose_b,
                               .c = scratch.data(),
                               .accumulate = false});
  fold_slices(p, static_cast<const float*>(scratch.data()), count, stream);
}

}  // namespace lockstep::kernels::cuda
