// Batch normalization of x (N, C), all arithmetic in f64: on GPUs with full f64 units it is hidden
// behind the loads.
//
//            columns ->         A block does a tile of columns of a chunk of rows. Its 256 threads
//           8 threads           are 32 rows of 8 threads: a thread has the 16 bytes of neighbouring
//         +-----------+         columns, in every 32nd row of the chunk.
//   rows  |   tile    |
//    |    |   of 128  | chunk   Sums over rows: every thread's own, then a tree over the 32 rows of
//    v    |   bytes   |         threads, then, where there are several chunks, another kernel's
//         +-----------+         tree over them. The cut is a function of N, C and the dtype alone.
//
// Counted (./lockstep count --write; docs/counters.md):
//   batch_statistics 1024x256: 2 launches, DRAM 1.02 of the fewest
//     batch_statistics_kernel: loads 16.00 (100 %), stores 8.00 (100 %), shared loads 1.78 (1.78),
//       shared stores 1.89 (1.89)
//     merge_parts_kernel: loads 2.00 (100 %), stores 1.00 (100 %), shared loads 1.70 (1.70),
//       shared stores 2.00 (2.00)
//   batch_inverse_std 1024x256: loads 8.00 (100 %), stores 8.00 (100 %), DRAM 1.00 of the fewest
//   batch_normalize 1024x256: loads 14.00 (100 %), stores 16.00 (100 %), DRAM 1.00 of the fewest
//   batch_norm_sums 1024x256: 2 launches, DRAM 1.01 of the fewest
//     batch_norm_sums_kernel: loads 15.53 (100 %), stores 8.00 (100 %), shared loads 1.78 (1.78),
//       shared stores 1.89 (1.89)
//     merge_parts_kernel: loads 2.00 (100 %), stores 1.00 (100 %), shared loads 1.70 (1.70),
//       shared stores 2.00 (2.00)
//   batch_norm_dx 1024x256: loads 14.81 (100 %), stores 16.00 (100 %), DRAM 1.00 of the fewest

#include "lockstep/kernels/cuda/backend.h"
#include "lockstep/kernels/cuda/common.cuh"
#include "lockstep/kernels/cuda/reduction.cuh"
#include "lockstep/kernels/formulas/batch_norm_parts.h"

namespace lockstep::kernels {
namespace {

using cuda::launch;
using cuda::queue_of;

constexpr int row_threads = 32, threads_per_row = 8, threads = row_threads * threads_per_row;
template <class T>
constexpr int tile_columns = threads_per_row * 16 / static_cast<int>(sizeof(T));

/// Enough blocks to fill a large GPU a few times, but few enough chunks that merging them is quick.
struct Cut {
  std::int64_t rows, columns, rows_per_chunk, chunks, tiles;
  bool aligned;  // every row of every operand: 16-byte accesses may be used

  template <class T>
  static Cut of(const Tensor& x, bool aligned_pointers) {
    constexpr std::int64_t most_blocks = 4096, most_chunks = 1024, fewest_rows = 512;
    Cut cut{};
    cut.rows = x.size(0);
    cut.columns = x.size(1);
    cut.tiles = divide_up(cut.columns, tile_columns<T>);
    const std::int64_t chunks =
        std::min({divide_up(cut.rows, fewest_rows), most_chunks, most_blocks / cut.tiles});
    cut.rows_per_chunk = divide_up(cut.rows, std::max<std::int64_t>(chunks, 1));
    cut.chunks = cut.rows == 0 ? 1 : divide_up(cut.rows, cut.rows_per_chunk);
    cut.aligned = aligned_pointers && cut.columns % pack_width<T> == 0;
    return cut;
  }
  dim3 grid() const { return dim3(static_cast<unsigned>(tiles * chunks)); }
};

/// What a thread does: rows [row, end), every 32nd, and `valid` columns from `column` on.
template <class T>
struct Share {
  std::int64_t chunk, tile, row, end, column;
  int valid;

  __device__ explicit Share(const Cut& cut)
      : chunk(blockIdx.x / cut.tiles),
        tile(blockIdx.x % cut.tiles),
        row(chunk * cut.rows_per_chunk + threadIdx.x / threads_per_row),
        end(min((chunk + 1) * cut.rows_per_chunk, cut.rows)),
        column(tile * tile_columns<T> + threadIdx.x % threads_per_row * pack_width<T>),
        valid(static_cast<int>(
            max(min(cut.columns - column, std::int64_t{pack_width<T>}), std::int64_t{0}))) {}
};

/// `valid` elements at p, the others 0.
template <bool aligned, class T>
__device__ __forceinline__ Pack<T> load_valid(const T* p, int valid) {
  if constexpr (aligned) {
    return load_pack(p);
  } else {
    Pack<T> result;
#pragma unroll
    for (int k = 0; k < pack_width<T>; ++k) result[k] = k < valid ? p[k] : T(0);
    return result;
  }
}

template <bool aligned, class T>
__device__ __forceinline__ void store_valid(T* p, const Pack<T>& pack, int valid) {
  if constexpr (aligned) {
    store_pack(p, pack);
  } else {
#pragma unroll
    for (int k = 0; k < pack_width<T>; ++k)
      if (k < valid) p[k] = pack[k];
  }
}

/// What a thread needs of a per-channel tensor (C,), in f64; `otherwise` if there is none. A warp
/// loads the tile's columns side by side, and hands them round. All of its threads call it.
template <class T, class C>
__device__ __forceinline__ Pack<double, pack_width<T>> channels(const C* values, const Cut& cut,
                                                                const Share<T>& share,
                                                                double otherwise) {
  constexpr int width = pack_width<T>;
  static_assert(tile_columns<T> <= warp_size);
  const int own = static_cast<int>(threadIdx.x) % tile_columns<T>;
  const int first = static_cast<int>(threadIdx.x) % threads_per_row * width;
  const std::int64_t column = share.tile * tile_columns<T> + own;
  const bool exists = values != nullptr && column < cut.columns;
  const double value = exists ? static_cast<double>(values[column]) : otherwise;
  Pack<double, width> result;
#pragma unroll
  for (int k = 0; k < width; ++k) result[k] = __shfl_sync(all_lanes, value, first + k);
  return result;
}

/// Calls at(aligned as a constant, the index of the thread's first element) for each of its rows,
/// several of which are under way at once.
template <class T, class At>
__device__ __forceinline__ void for_rows(const Cut& cut, const Share<T>& share, At at) {
  if (share.valid == 0) return;
  if (cut.aligned) {
#pragma unroll 4
    for (std::int64_t row = share.row; row < share.end; row += row_threads)
      at(std::true_type{}, row * cut.columns + share.column);
  } else {
    for (std::int64_t row = share.row; row < share.end; row += row_threads)
      at(std::false_type{}, row * cut.columns + share.column);
  }
}

// Sums over rows. A Part is Moments or GradientSums; its two results go to `a` and `b`.

__device__ void put(const Moments<>& part, double& a, double& b) {
  a = part.mean;
  b = part.m2;
}
__device__ void put(const GradientSums<>& part, double& a, double& b) {
  a = part.dy;
  b = part.dy_xhat;
}

/// How the parts of a block's threads are merged.
template <class T, class Part>
using Merge = BlockMerge<Part, row_threads, threads, pack_width<T>>;

/// The block's part: the results, if it is the only one of its columns, or one of `parts`
/// (chunks, C).
template <class T, class Part>
__device__ void finish_block(const Cut& cut, const Share<T>& share, Part (&own)[pack_width<T>],
                             const Merge<T, Part>& merge, double* parts, double* a, double* b) {
  merge(own);
  const Part part = merge.by_column(own);
  const std::int64_t column = share.tile * tile_columns<T> + threadIdx.x;
  if (threadIdx.x >= tile_columns<T> || column >= cut.columns) return;
  if (cut.chunks == 1)
    put(part, a[column], b[column]);
  else
    Planes<Part>{parts, cut.chunks * cut.columns}.store(share.chunk * cut.columns + column, part);
}

/// 16-byte loads of x (N, C), where rows are aligned.
template <class T>
__global__ void __launch_bounds__(threads)
    batch_statistics_kernel(const T* x, const Cut cut, double* parts, double* mean, double* m2) {
  __shared__ typename Merge<T, Moments<>>::Memory memory;
  const Share<T> share(cut);
  Moments<> own[pack_width<T>] = {};
  double count = 0;
  for_rows<T>(cut, share, [&](auto aligned, std::int64_t i) {
    const Pack<T> values = load_valid<decltype(aligned)::value>(x + i, share.valid);
    count += 1;
    const double inverse_count = 1 / count;
#pragma unroll
    for (int k = 0; k < pack_width<T>; ++k)
      own[k].add(static_cast<double>(values[k]), inverse_count);
  });
#pragma unroll
  for (int k = 0; k < pack_width<T>; ++k) own[k].count = count;
  finish_block<T, Moments<>>(cut, share, own, Merge<T, Moments<>>(memory), parts, mean, m2);
}

/// 16-byte loads of dy and x (N, C), where rows are aligned.
template <class T>
__global__ void __launch_bounds__(threads)
    batch_norm_sums_kernel(const T* dy, const T* x, const double* mean, const double* inverse_std,
                           const Cut cut, double* parts, double* sum_dy, double* sum_dy_xhat) {
  constexpr int width = pack_width<T>;
  __shared__ typename Merge<T, GradientSums<>>::Memory memory;
  const Share<T> share(cut);
  const auto center = channels(mean, cut, share, 0);
  const auto scale = channels(inverse_std, cut, share, 0);
  GradientSums<> own[width] = {};
  for_rows<T>(cut, share, [&](auto aligned, std::int64_t i) {
    const Pack<T> gradient = load_valid<decltype(aligned)::value>(dy + i, share.valid);
    const Pack<T> values = load_valid<decltype(aligned)::value>(x + i, share.valid);
#pragma unroll
    for (int k = 0; k < width; ++k) {
      const double g = static_cast<double>(gradient[k]);
      own[k].merge({g, g * ((static_cast<double>(values[k]) - center[k]) * scale[k])});
    }
  });
  finish_block<T, GradientSums<>>(cut, share, own, Merge<T, GradientSums<>>(memory), parts, sum_dy,
                                  sum_dy_xhat);
}

constexpr int merge_columns = 4, merge_rows = 64, merge_threads = merge_columns * merge_rows;

/// The tree over the chunks: parts (chunks, C) -> a, b (C,). Four columns per block.
template <class Part>
__global__ void __launch_bounds__(merge_threads)
    merge_parts_kernel(double* parts, std::int64_t chunks, std::int64_t columns, double* a,
                       double* b) {
  using Tree = BlockMerge<Part, merge_rows, merge_threads, 1>;
  __shared__ typename Tree::Memory memory;
  const Planes<Part> all{parts, chunks * columns};
  const int row = threadIdx.x / merge_columns, c = threadIdx.x % merge_columns;
  const std::int64_t column = std::int64_t{blockIdx.x} * merge_columns + c;
  Part own[1] = {};
  if (column < columns) {
#pragma unroll 4
    for (std::int64_t chunk = row; chunk < chunks; chunk += merge_rows)
      own[0].merge(all.load(chunk * columns + column));
  }
  Tree{memory}(own);
  if (row == 0 && column < columns) put(own[0], a[column], b[column]);
}

__global__ void batch_inverse_std_kernel(const double* m2, std::int64_t columns, double count,
                                         double eps, double* out) {
  const std::int64_t c = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (c < columns) out[c] = inverse_std_of(m2[c], count, eps);
}

/// 16-byte loads of x (N, C), where rows are aligned.
template <class T>
__global__ void __launch_bounds__(threads)
    batch_normalize_kernel(const T* __restrict__ x, const double* mean, const double* inverse_std,
                           const T* weight, const T* bias, const Cut cut, T* __restrict__ out) {
  constexpr int width = pack_width<T>;
  const Share<T> share(cut);
  const auto center = channels(mean, cut, share, 0);
  const auto gain = channels(weight, cut, share, 1);
  const auto shift = channels(bias, cut, share, 0);
  auto factor = channels(inverse_std, cut, share, 0);
#pragma unroll
  for (int k = 0; k < width; ++k) factor[k] *= gain[k];
  for_rows<T>(cut, share, [&](auto aligned, std::int64_t i) {
    Pack<T> values = load_valid<decltype(aligned)::value>(x + i, share.valid);
#pragma unroll
    for (int k = 0; k < width; ++k)
      values[k] =
          static_cast<T>((static_cast<double>(values[k]) - center[k]) * factor[k] + shift[k]);
    store_valid<decltype(aligned)::value>(out + i, values, share.valid);
  });
}

/// 16-byte loads of dy, x and, where it is added to, dx (N, C), where rows are aligned.
template <class T>
__global__ void __launch_bounds__(threads)
    batch_norm_dx_kernel(const T* __restrict__ dy, const T* __restrict__ x, const double* mean,
                         const double* inverse_std, const T* weight, const double* mean_dy,
                         const double* mean_dy_xhat, const Cut cut, T* __restrict__ dx,
                         bool accumulate) {
  constexpr int width = pack_width<T>;
  const Share<T> share(cut);
  const auto center = channels(mean, cut, share, 0);
  const auto offset = channels(mean_dy, cut, share, 0);
  const auto gain = channels(weight, cut, share, 1);
  auto factor = channels(inverse_std, cut, share, 0);
  auto slope = channels(mean_dy_xhat, cut, share, 0);
#pragma unroll
  for (int k = 0; k < width; ++k) {
    slope[k] *= factor[k];
    factor[k] *= gain[k];
  }
  for_rows<T>(cut, share, [&](auto aligned, std::int64_t i) {
    constexpr bool packs = decltype(aligned)::value;
    const Pack<T> gradient = load_valid<packs>(dy + i, share.valid);
    const Pack<T> values = load_valid<packs>(x + i, share.valid);
    Pack<T> result{};
    if (accumulate) result = load_valid<packs>(dx + i, share.valid);
#pragma unroll
    for (int k = 0; k < width; ++k) {
      const double centered = static_cast<double>(values[k]) - center[k];
      const double exact =
          factor[k] * (static_cast<double>(gradient[k]) - offset[k] - centered * slope[k]);
      result[k] = accumulate ? result[k] + static_cast<T>(exact) : static_cast<T>(exact);
    }
    store_valid<packs>(dx + i, result, share.valid);
  });
}

/// Calls sum(parts), where `parts` has room for the blocks' parts if there are several chunks, and
/// then merges them.
template <class Part, class Launch>
void sum_rows_of(const Cut& cut, const Tensor& a, const Tensor& b, Launch sum) {
  if (cut.chunks == 1) return sum(static_cast<double*>(nullptr));
  const Tensor scratch =  // Part (chunks, C)
      Tensor::empty({Planes<Part>::numbers, cut.chunks, cut.columns}, DType::f64, a.device());
  double* const parts = scratch.data<double>();
  sum(parts);
  launch<merge_parts_kernel<Part>>(
      {.grid = blocks_for(cut.columns, merge_columns), .block = merge_threads}, queue_of(a).stream,
      parts, cut.chunks, cut.columns, a.data<double>(), b.data<double>());
}

template <class T>
const T* data_or_null(const Tensor& tensor) {
  return tensor.defined() ? tensor.data<T>() : nullptr;
}

}  // namespace

void CudaBackend::batch_statistics(const Tensor& x, const Tensor& mean, const Tensor& m2) {
  if (x.size(1) == 0) return;
  visit_floating("batch_statistics", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const Cut cut = Cut::of<T>(x, is_aligned(x.data<T>()));
    sum_rows_of<Moments<>>(cut, mean, m2, [&](double* parts) {
      launch<batch_statistics_kernel<T>>({.grid = cut.grid(), .block = threads}, queue_of(x).stream,
                                         x.data<T>(), cut, parts, mean.data<double>(),
                                         m2.data<double>());
    });
  });
}

void CudaBackend::batch_inverse_std(const Tensor& m2, double count, double eps, const Tensor& out) {
  if (m2.numel() == 0) return;
  launch<batch_inverse_std_kernel>({.grid = blocks_for(m2.numel(), threads), .block = threads},
                                   queue_of(m2).stream, m2.data<double>(), m2.numel(), count, eps,
                                   out.data<double>());
}

void CudaBackend::batch_normalize(const Tensor& x, const Tensor& mean, const Tensor& inverse_std,
                                  const Tensor& weight, const Tensor& bias, const Tensor& out) {
  if (x.numel() == 0) return;
  visit_floating("batch_normalize", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const Cut cut = Cut::of<T>(x, is_aligned(x.data<T>()) && is_aligned(out.data<T>()));
    launch<batch_normalize_kernel<T>>({.grid = cut.grid(), .block = threads}, queue_of(x).stream,
                                      x.data<T>(), mean.data<double>(), inverse_std.data<double>(),
                                      data_or_null<T>(weight), data_or_null<T>(bias), cut,
                                      out.data<T>());
  });
}

void CudaBackend::batch_norm_sums(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                  const Tensor& inverse_std, const Tensor& sum_dy,
                                  const Tensor& sum_dy_xhat) {
  if (x.size(1) == 0) return;
  visit_floating("batch_norm_sums", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const Cut cut = Cut::of<T>(x, is_aligned(x.data<T>()) && is_aligned(dy.data<T>()));
    sum_rows_of<GradientSums<>>(cut, sum_dy, sum_dy_xhat, [&](double* parts) {
      launch<batch_norm_sums_kernel<T>>({.grid = cut.grid(), .block = threads}, queue_of(x).stream,
                                        dy.data<T>(), x.data<T>(), mean.data<double>(),
                                        inverse_std.data<double>(), cut, parts,
                                        sum_dy.data<double>(), sum_dy_xhat.data<double>());
    });
  });
}

void CudaBackend::batch_norm_dx(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                const Tensor& inverse_std, const Tensor& weight,
                                const Tensor& mean_dy, const Tensor& mean_dy_xhat, const Tensor& dx,
                                bool accumulate) {
  if (x.numel() == 0) return;
  visit_floating("batch_norm_dx", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const Cut cut = Cut::of<T>(
        x, is_aligned(x.data<T>()) && is_aligned(dy.data<T>()) && is_aligned(dx.data<T>()));
    launch<batch_norm_dx_kernel<T>>(
        {.grid = cut.grid(), .block = threads}, queue_of(x).stream, dy.data<T>(), x.data<T>(),
        mean.data<double>(), inverse_std.data<double>(), data_or_null<T>(weight),
        mean_dy.data<double>(), mean_dy_xhat.data<double>(), cut, dx.data<T>(), accumulate);
  });
}

}  // namespace lockstep::kernels
