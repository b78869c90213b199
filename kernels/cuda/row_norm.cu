// Normalization of rows on a GPU, all arithmetic in f64. A row is a team's (rows.cuh): it is read
// once, and stays in registers. One that is too long for them is a block's, which reads it anew for
// each sum: from the L2 cache.
//
// Counted (./lockstep count --write; docs/counters.md):
//   row_normalize 256x256: loads 16.00 (100 %), stores 8.50 (100 %), DRAM 1.00 of the fewest
//   row_norm_dx 256x256: loads 13.00 (100 %), stores 16.00 (100 %), DRAM 1.00 of the fewest
//   row_normalize 4x16384: loads 16.00 (100 %), stores 15.77 (100 %), shared loads 2.00 (2.00),
//     shared stores 1.00 (1.00), DRAM 1.00 of the fewest
//   row_norm_dx 4x16384: loads 15.40 (100 %), stores 16.00 (100 %), shared loads 2.00 (2.00),
//     shared stores 1.00 (1.00), DRAM 1.00 of the fewest
//   row_normalize 2x32768: loads 16.00 (100 %), stores 15.88 (100 %), shared loads 2.00 (2.00),
//     shared stores 1.00 (1.00), DRAM 1.00 of the fewest
//   row_norm_dx 2x32768: loads 15.69 (100 %), stores 16.00 (100 %), shared loads 2.00 (2.00),
//     shared stores 1.00 (1.00), DRAM 1.00 of the fewest
//   row_norm_dweight 1024x256: 3 launches, DRAM 1.01 of the fewest
//     row_norm_dweight_kernel: loads 8.50 (100 %), stores 8.00 (100 %), shared loads 2.00 (2.00),
//       shared stores 2.00 (2.00)
//     sum_middle_kernel: loads 16.00 (100 %), stores 16.00 (100 %), shared loads 4.00 (4.00),
//       shared stores 4.00 (4.00)
//     cast_kernel: loads 16.00 (100 %), stores 8.00 (100 %)
#include "lockstep/kernels/batch_norm.h"
#include "lockstep/kernels/cuda/backend.h"
#include "lockstep/kernels/cuda/rows.cuh"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/formulas/batch_norm_parts.h"
#include "lockstep/kernels/formulas/with_flag.h"
#include "lockstep/kernels/reduce.h"

namespace lockstep::kernels {
namespace {

using lockstep::cuda::launch;
using lockstep::cuda::queue_of;

/// What one thread of a team has of `operands` rows of one length, access by access as a RowShare.
/// With accesses = 0 nothing is kept: the rows are read anew whenever they are gone through.
template <class T, int width, int accesses, int operands>
struct RowShares {
  using Index = std::conditional_t<accesses == 0, std::int64_t, int>;
  using Packs = Pack<T, width>[operands];

  const T* rows[operands];
  bool aligned;
  int lane, lanes;
  Index columns;
  Packs held[std::max(accesses, 1)];

  /// With columns = 0 of no row at all: nothing is read.
  __device__ RowShares(const T* const (&rows_)[operands], bool aligned_, int lane_, int lanes_,
                       std::int64_t columns_)
      : aligned(aligned_), lane(lane_), lanes(lanes_), columns(static_cast<Index>(columns_)) {
#pragma unroll
    for (int o = 0; o < operands; ++o) rows[o] = rows_[o];
#pragma unroll
    for (int p = 0; p < accesses; ++p)
      if (column(p) < columns) read(held[p], column(p));
  }

  __device__ Index column(int access) const { return (Index{access} * lanes + lane) * width; }

  /// f(column, packs) for each access: its first column, and each row's elements.
  template <class F>
  __device__ __forceinline__ void for_each(F f) const {
    if constexpr (accesses > 0) {
#pragma unroll
      for (int p = 0; p < accesses; ++p)
        if (column(p) < columns) f(column(p), held[p]);
    } else {
#pragma unroll 4
      for (Index c = column(0); c < columns; c += Index{lanes} * width) {
        Packs packs;
        read(packs, c);
        f(c, packs);
      }
    }
  }

 private:
  __device__ void read(Packs& packs, Index column) const {
#pragma unroll
    for (int o = 0; o < operands; ++o) packs[o] = load_pack<width>(rows[o] + column, aligned);
  }
};

/// The rows of a launch: `lanes` threads for each.
struct Rows {
  std::int64_t rows, columns;
  int lanes;
  bool aligned;  ///< every row of every operand

  __device__ int lane() const { return static_cast<int>(threadIdx.x) % lanes; }
  __device__ std::int64_t row() const {
    return blockIdx.x * std::int64_t{blockDim.x / lanes} + threadIdx.x / lanes;
  }
};

/// Elements from `column` on of weight or bias (columns,), or `otherwise` if there is none.
template <int width, class T>
__device__ __forceinline__ Pack<T, width> feature(const T* values, std::int64_t column,
                                                  bool aligned, T otherwise) {
  if (values != nullptr) return load_pack<width>(values + column, aligned);
  Pack<T, width> pack;
#pragma unroll
  for (int i = 0; i < width; ++i) pack[i] = otherwise;
  return pack;
}

/// 16-byte loads and stores.
template <class T, int width, int accesses>
__global__ void __launch_bounds__(largest_team<T>, 1)
    row_normalize_kernel(const T* x, const T* weight, const T* bias, const Rows all,
                         const RowNormConfig config, T* out, double* mean, double* inverse_std) {
  __shared__ double shared[warp_size];
  const std::int64_t row = all.row(), begin = row * all.columns;
  const bool exists = row < all.rows;
  const RowShares<T, width, accesses, 1> share({x + begin}, all.aligned, all.lane(), all.lanes,
                                               exists ? all.columns : 0);
  const auto count = static_cast<double>(all.columns);
  // The sum of term(element) over the row.
  const auto sum = [&](auto term) {
    double total = 0;
    share.for_each([&](std::int64_t, const auto& packs) {
#pragma unroll
      for (int i = 0; i < width; ++i) total += term(static_cast<double>(packs[0][i]));
    });
    return team_fold(total, Adding<double>(), all.lanes, shared);
  };
  const double center = config.centered ? sum([](double v) { return v; }) / count : 0;
  const double m2 = sum([&](double v) { return (v - center) * (v - center); });
  const double scale = inverse_std_of(m2, count, config.eps);
  if (exists && all.lane() == 0) {
    mean[row] = center;
    inverse_std[row] = scale;
  }
  share.for_each([&](std::int64_t column, const auto& packs) {
    const Pack<T, width> gain = feature<width>(weight, column, all.aligned, T(1));
    const Pack<T, width> shift = feature<width>(bias, column, all.aligned, T(0));
    Pack<T, width> result;
#pragma unroll
    for (int i = 0; i < width; ++i)
      result[i] =
          static_cast<T>((static_cast<double>(packs[0][i]) - center) * scale * gain[i] + shift[i]);
    store_pack(out + begin + column, result, all.aligned);
  });
}

/// Two rows take more registers than a block of 1024 threads has.
constexpr int dx_team = 512;

/// 16-byte loads and stores.
template <class T, int width, int accesses, bool accumulate>
__global__ void __launch_bounds__(dx_team, 1)
    row_norm_dx_kernel(const T* dy, const T* x, const T* weight, const double* mean,
                       const double* inverse_std, const Rows all, bool centered, T* dx) {
  __shared__ double shared[warp_size];
  const std::int64_t row = all.row(), begin = row * all.columns;
  const bool exists = row < all.rows;
  const RowShares<T, width, accesses, 2> share({dy + begin, x + begin}, all.aligned, all.lane(),
                                               all.lanes, exists ? all.columns : 0);
  const double center = exists ? mean[row] : 0, scale = exists ? inverse_std[row] : 0;
  // f(column, g, xhat) for each access.
  const auto for_each = [&](auto f) {
    share.for_each([&](std::int64_t column, const auto& packs) {
      const Pack<T, width> gain = feature<width>(weight, column, all.aligned, T(1));
      double g[width], xhat[width];
#pragma unroll
      for (int i = 0; i < width; ++i) {
        g[i] = static_cast<double>(packs[0][i]) * gain[i];
        xhat[i] = (static_cast<double>(packs[1][i]) - center) * scale;
      }
      f(column, g, xhat);
    });
  };
  GradientSums<> sums{};
  for_each([&](std::int64_t, const double* g, const double* xhat) {
#pragma unroll
    for (int i = 0; i < width; ++i) sums.merge({g[i], g[i] * xhat[i]});
  });
  const auto mean_of_row = [&](double own) {
    return team_fold(own, Adding<double>(), all.lanes, shared) / static_cast<double>(all.columns);
  };
  const double offset = centered ? mean_of_row(sums.dy) : 0, slope = mean_of_row(sums.dy_xhat);
  for_each([&](std::int64_t column, const double* g, const double* xhat) {
    T* const to = dx + begin + column;
    Pack<T, width> result;
#pragma unroll
    for (int i = 0; i < width; ++i)
      result[i] = static_cast<T>((g[i] - offset - xhat[i] * slope) * scale);
    if constexpr (accumulate) {
      const Pack<T, width> before = load_pack<width>(to, all.aligned);
#pragma unroll
      for (int i = 0; i < width; ++i) result[i] += before[i];
    }
    store_pack(to, result, all.aligned);
  });
}

/// Calls f(width, accesses, rows, blocks and threads), the first two as constants, for rows of x by
/// teams of at most `largest` threads. `pointers` are all operands, or null.
template <int largest, class T, class F>
void with_row_teams(const Tensor& x, std::initializer_list<const T*> pointers, F f) {
  const std::int64_t rows = x.size(0), columns = x.size(1);
  const auto run = [&](auto width, auto accesses, const RowTeams& teams) {
    const bool aligned = std::ranges::all_of(
        pointers, [&](const T* p) { return is_aligned<decltype(width)::value>(p); });
    f(width, accesses, Rows{rows, columns, teams.lanes, aligned},
      lockstep::cuda::LaunchShape{.grid = blocks_for(rows, teams.per_block()),
                                  .block = dim3(static_cast<unsigned>(teams.threads))});
  };
  if (with_rows_in_registers<T, largest>(columns, run)) return;
  with_width<T>(packs_fit<T>(columns), [&](auto width) {
    run(width, std::integral_constant<int, 0>{}, RowTeams{largest, largest});
  });
}

// The gradient of the weight: sums over rows, in f64. A warp has 32 accesses of a row.

constexpr int dweight_rows = 8, dweight_threads = dweight_rows * warp_size;
constexpr std::int64_t dweight_chunk = 256;  ///< rows that a block adds

/// A number that BlockMerge can add.
struct Total {
  double value;
  __device__ void merge(const Total& other) { value += other.value; }
};

/// A block per (chunk of rows, tile of columns): out (chunks, columns) = each chunk's sums of dy *
/// xhat. 16-byte loads.
template <class T, int width>
__global__ void __launch_bounds__(dweight_threads)
    row_norm_dweight_kernel(const T* dy, const T* x, const double* mean, const double* inverse_std,
                            const Rows all, unsigned tiles, double* out) {
  using Merge = BlockMerge<Total, dweight_rows, dweight_threads, width>;
  __shared__ typename Merge::Memory memory;
  const Merge merge(memory);
  const std::int64_t chunk = blockIdx.x / tiles;
  const std::int64_t first = std::int64_t{blockIdx.x % tiles} * Merge::columns;
  const std::int64_t column = first + threadIdx.x % warp_size * width;
  const std::int64_t end = min((chunk + 1) * dweight_chunk, all.rows);
  Total own[width] = {};
  if (column < all.columns) {
#pragma unroll 4
    for (std::int64_t row = chunk * dweight_chunk + threadIdx.x / warp_size; row < end;
         row += dweight_rows) {
      const std::int64_t at = row * all.columns + column;
      const Pack<T, width> gradient = load_pack<width>(dy + at, all.aligned);
      const Pack<T, width> values = load_pack<width>(x + at, all.aligned);
      const double center = mean[row], scale = inverse_std[row];
#pragma unroll
      for (int i = 0; i < width; ++i)
        own[i].value += (static_cast<double>(values[i]) - center) * scale * gradient[i];
    }
  }
  merge(own);
  const Total total = merge.by_column(own);
  const std::int64_t mine = first + threadIdx.x;
  if (threadIdx.x < Merge::columns && mine < all.columns)
    out[chunk * all.columns + mine] = total.value;
}

template <class T>
const T* data_or_null(const Tensor& tensor) {
  return tensor.defined() ? tensor.data<T>() : nullptr;
}

}  // namespace

void CudaBackend::row_normalize(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                const RowNormConfig& config, const Tensor& out, const Tensor& mean,
                                const Tensor& inverse_std) {
  visit_floating("row_normalize", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T *from = x.data<T>(), *w = data_or_null<T>(weight), *b = data_or_null<T>(bias);
    T* const to = out.data<T>();
    with_row_teams<largest_team<T>, T>(
        x, {from, w, b, to}, [&](auto width, auto accesses, auto rows, auto shape) {
          launch<row_normalize_kernel<T, width, accesses>>(shape, queue_of(x).stream, from, w, b,
                                                           rows, config, to, mean.data<double>(),
                                                           inverse_std.data<double>());
        });
  });
}

void CudaBackend::row_norm_dweight(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                   const Tensor& inverse_std, const Tensor& dweight,
                                   bool accumulate) {
  const std::int64_t rows = x.size(0), columns = x.size(1), chunks = divide_up(rows, dweight_chunk);
  const auto wide = [&](const Shape& shape) {
    return Tensor::empty(shape, DType::f64, x.device());
  };
  const Tensor of_chunks = wide({chunks, columns});
  visit_floating("row_norm_dweight", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T *gradient = dy.data<T>(), *from = x.data<T>();
    with_width<T>(packs_fit<T>(columns), [&](auto width) {
      const std::int64_t tiles = divide_up(columns, width * warp_size);
      const bool aligned = is_aligned<width>(gradient) && is_aligned<width>(from);
      launch<row_norm_dweight_kernel<T, width>>(
          {.grid = blocks_for(chunks * tiles, 1), .block = dweight_threads}, queue_of(x).stream,
          gradient, from, mean.data<double>(), inverse_std.data<double>(),
          Rows{rows, columns, warp_size, aligned}, static_cast<unsigned>(tiles),
          of_chunks.data<double>());
    });
  });
  const Tensor sums = chunks == 1 ? of_chunks.view({columns}) : wide({columns});
  if (chunks > 1) kernels::sum_rows(of_chunks, sums);
  if (!accumulate) return kernels::cast(sums, dweight);
  const Tensor rounded = Tensor::empty(dweight.shape(), dweight.dtype(), x.device());
  kernels::cast(sums, rounded);
  kernels::scale(1, rounded, dweight, true);
}

void CudaBackend::row_norm_dx(const Tensor& dy, const Tensor& x, const Tensor& mean,
                              const Tensor& inverse_std, const Tensor& weight,
                              const RowNormConfig& config, const Tensor& dx, bool accumulate) {
  visit_floating("row_norm_dx", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T *gradient = dy.data<T>(), *from = x.data<T>(), *w = data_or_null<T>(weight);
    T* const to = dx.data<T>();
    with_row_teams<dx_team, T>(
        x, {gradient, from, w, to}, [&](auto width, auto accesses, auto rows, auto shape) {
          with_flag(accumulate, [&](auto add) {
            launch<row_norm_dx_kernel<T, width, accesses, add>>(
                shape, queue_of(x).stream, gradient, from, w, mean.data<double>(),
                inverse_std.data<double>(), rows, config.centered, to);
          });
        });
  });
}

}  // namespace lockstep::kernels
