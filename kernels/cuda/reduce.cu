// Sums, argmax and the search for bad elements on a GPU. Orders of sums are functions of the shape
// (and of the constants here and in reduction.cuh).
//
// Counted (./lockstep count --write; docs/counters.md):
//   sum 256x1024: 2 launches, DRAM 1.00 of the fewest
//     reduce_chunks_kernel: loads 16.00 (100 %), stores 1.00 (100 %), shared loads 1.00 (1.00),
//       shared stores 1.00 (1.00)
//     reduce_chunks_kernel: loads 2.00 (100 %), stores 1.00 (100 %), shared loads 1.00 (1.00),
//       shared stores 1.00 (1.00)
//   sum_rows 256x1024: loads 16.00 (100 %), stores 16.00 (100 %), shared loads 4.00 (4.00),
//     shared stores 4.00 (4.00), DRAM 1.00 of the fewest
//   sum_rows 128x10: loads 4.51 (88 %), stores 2.00 (100 %), shared loads 1.00 (1.00),
//     shared stores 1.00 (1.00), DRAM 1.00 of the fewest
//   sum_cols 256x1024: loads 16.00 (100 %), stores 1.00 (100 %), DRAM 1.00 of the fewest
//   argmax 256x1024: loads 16.00 (100 %), stores 1.00 (100 %), DRAM 1.00 of the fewest
//   find_nonfinite 256x1024: loads 16.00 (100 %), DRAM 1.00 of the fewest
#include "lockstep/kernels/broadcast.h"
#include "lockstep/kernels/cuda/backend.h"
#include "lockstep/kernels/cuda/reduction.cuh"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/reduce.h"

namespace lockstep::kernels {
namespace {

using lockstep::cuda::launch;
using lockstep::cuda::queue_of;

// Sums over the middle dimension: (outer, rows, columns) -> (outer, columns). With outer = 1, sums
// over the rows of a matrix.

/// How a block's threads lie over a tile: `across` of them side by side, each with the columns of
/// one access, and `down` of them below each other, each of which adds every down'th row.
struct Tiling {
  int across;
  int down;
  std::int64_t tiles;         ///< side by side, of `across` accesses
  std::int64_t rows_a_chunk;  ///< that a block adds
  std::int64_t chunks;        ///< below each other

  /// `accesses` make up a row.
  Tiling(std::int64_t rows, std::int64_t accesses) {
    // Up to 64 accesses are one tile, so that threads with neighbouring numbers have neighbouring
    // elements even across the ends of rows.
    across = accesses <= 64 ? static_cast<int>(accesses) : warp_size;
    down = reduce_threads / across;
    tiles = divide_up(accesses, across);
    // A thread adds at least 32 elements, and more, up to 128, where there are rows enough to keep
    // every multiprocessor busy all the same.
    const std::int64_t wanted_chunks = divide_up(2048, tiles);
    rows_a_chunk = down * std::clamp<std::int64_t>(divide_up(rows, down * wanted_chunks), 32, 128);
    chunks = std::max<std::int64_t>(1, divide_up(rows, rows_a_chunk));
  }
};

/// A block per (outer, chunk of rows, tile of columns): x (outer, rows, columns) -> partial sums
/// (outer, chunks, columns). 16-byte loads, eight under way at once.
template <class T, int width>
__global__ void __launch_bounds__(reduce_threads)
    sum_middle_kernel(const T* x, bool aligned, std::int64_t rows, std::int64_t columns,
                      const Tiling tiling, T* out, bool accumulate) {
  constexpr int unroll = 8;
  __shared__ Pack<T, width> shared[reduce_threads];
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t strip = blockIdx.x / tiling.tiles, tile = blockIdx.x - strip * tiling.tiles;
  const std::int64_t outer = strip / tiling.chunks, chunk = strip - outer * tiling.chunks;
  const int right = thread % tiling.across, below = thread / tiling.across;
  const std::int64_t column = (tile * tiling.across + right) * width;
  const bool inside = below < tiling.down && column < columns;

  const std::int64_t begin = chunk * tiling.rows_a_chunk;
  const std::int64_t end = inside ? min(begin + tiling.rows_a_chunk, rows) : begin;
  const T* from = x + outer * rows * columns + column;
  using Sums = SumSource<T, width>;
  auto sums = Sums::start();
  std::int64_t row = begin + below;
  const std::int64_t step = tiling.down;
  for (; row + (unroll - 1) * step < end; row += unroll * step) {
    Pack<T, width> terms[unroll];
#pragma unroll
    for (int i = 0; i < unroll; ++i)
      terms[i] = load_pack<width>(from + (row + i * step) * columns, aligned);
#pragma unroll
    for (int i = 0; i < unroll; ++i) Sums::absorb(sums, terms[i], 0);
  }
  for (; row < end; row += step)
    Sums::absorb(sums, load_pack<width>(from + row * columns, aligned), 0);

  // The sums of the threads below each other, the lower half to the upper half. A thread's are
  // written once, when they are about to be read.
  for (int n = tiling.down; n > 1; n = (n + 1) / 2) {
    const int half = (n + 1) / 2;
    if (below >= half && below < n) store_pack(shared[thread].values, sums);
    __syncthreads();
    if (below + half < n)
      Sums::absorb(sums, load_pack<width>(shared[thread + half * tiling.across].values), 0);
  }
  if (!inside || below > 0) return;
  T* to = out + strip * columns + column;
  const bool packs = is_aligned<width>(out);
  if (accumulate) {
    Pack<T, width> before = load_pack<width>(to, packs);
    Sums::absorb(before, sums, 0);
    sums = before;
  }
  store_pack(to, sums, packs);
}

/// out (outer, columns) (+)= the sums of x (outer, rows, columns) over the rows.
template <class T>
void sum_middle(Device device, const T* x, std::int64_t outer, std::int64_t rows,
                std::int64_t columns, T* out, bool accumulate) {
  if (outer * columns == 0) return;
  if (columns == 1 && outer == 1) return sum_of_all(device, x, rows, Put<T>{out, accumulate});
  if (columns == 1) return sum_of_rows(device, x, outer, rows, Put<T>{out, accumulate});
  with_width<T>(packs_fit<T>(columns), [&](auto width) {
    const Tiling tiling(rows, columns / width);
    const auto add_chunks = [&](T* to, bool accumulate_there) {
      launch<sum_middle_kernel<T, width>>(
          {.grid = blocks_for(outer * tiling.chunks * tiling.tiles, 1), .block = reduce_threads},
          queue_of(device).stream, x, is_aligned<width>(x), rows, columns, tiling, to,
          accumulate_there);
    };
    if (tiling.chunks == 1) return add_chunks(out, accumulate);
    const Tensor partial = Tensor::empty({outer, tiling.chunks, columns}, dtype_of<T>(), device);
    add_chunks(partial.data<T>(), false);
    sum_middle(device, partial.data<T>(), outer, tiling.chunks, columns, out, accumulate);
  });
}

/// out (+)= what write(to, add) makes of it, divided.
template <class F>
void divided(const Tensor& out, bool accumulate, double divisor, const F& write) {
  if (divisor == 1) return write(out, accumulate);
  const Tensor sum = Tensor::empty(out.shape(), out.dtype(), out.device());
  write(sum, false);
  kernels::scale(1 / divisor, sum, out, accumulate);
}

// Argmax.

template <class T>
struct Candidate {
  T value;
  std::int64_t at;  ///< counted from the matrix's beginning; -1: none
};

template <class T>
__device__ __forceinline__ Candidate<T> shuffled(const Candidate<T>& mine, int distance) {
  return {__shfl_xor_sync(all_lanes, mine.value, distance),
          __shfl_xor_sync(all_lanes, static_cast<long long>(mine.at), distance)};
}

/// The larger one; of equals the first; NaN before all.
template <class T>
struct Largest {
  using Value = Candidate<T>;
  static __device__ Value identity() { return {T(0), -1}; }
  __device__ Value operator()(const Value& a, const Value& b) const {
    if (a.at < 0 || b.at < 0) return a.at < 0 ? b : a;
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    const bool equal = a.value == b.value || (a_nan && b_nan);
    if (equal) return a.at < b.at ? a : b;
    return a_nan || a.value > b.value ? a : b;
  }
};

template <class T, int width_>
struct Candidates {
  static constexpr int width = width_;
  using Fold = Largest<T>;
  using Terms = Pack<T, width>;
  using State = Candidate<T>;
  const T* x;
  bool aligned;

  explicit Candidates(const T* elements) : x(elements), aligned(is_aligned<width_>(elements)) {}
  __device__ Terms load(std::int64_t at) const { return load_pack<width>(x + at, aligned); }
  __device__ Terms load_first(std::int64_t at, int count) const {
    Terms terms;  // filled up with the first: it wins over those
#pragma unroll
    for (int i = 0; i < width; ++i) terms[i] = x[i < count ? at + i : at];
    return terms;
  }
  static __device__ State start() { return Fold::identity(); }
  static __device__ void absorb(State& best, const Terms& terms, std::int64_t at) {
#pragma unroll
    for (int i = 0; i < width; ++i) best = Fold()(best, State{terms[i], at + i});
  }
  static __device__ State value(const State& best) { return best; }
};

/// out[row] = the column of the row's winner.
template <class T>
struct PutColumn {
  std::int64_t* out;
  std::int64_t columns;
  __device__ void put(std::int64_t row, const Candidate<T>& best) const {
    out[row] = best.at - row * columns;
  }
};

// The search for infinities and NaN.

/// flag becomes 1 if an element of x (n) is infinite or NaN. 16-byte loads, four under way at once.
template <class T>
__global__ void __launch_bounds__(reduce_threads)
    find_nonfinite_kernel(const T* x, bool aligned, std::int64_t n, std::int32_t* flag) {
  constexpr int unroll = 4, width = pack_width<T>;
  const std::int64_t step = reduce_threads * width;
  const std::int64_t begin = blockIdx.x * unroll * step + std::int64_t{threadIdx.x} * width;
  Pack<T, width> packs[unroll];
#pragma unroll
  for (int i = 0; i < unroll; ++i) {
    const std::int64_t at = begin + i * step;
    packs[i] = at + width <= n
                   ? load_pack<width>(x + at, aligned)
                   : load_some<width>(x + at, static_cast<int>(max(n - at, std::int64_t{0})));
  }
  bool bad = false;
#pragma unroll
  for (int i = 0; i < unroll; ++i)
#pragma unroll
    for (int j = 0; j < width; ++j) bad |= !(packs[i][j] - packs[i][j] == 0);  // inf - inf is NaN
  if (bad) *flag = 1;  // in any order: all threads write the same
}

}  // namespace

void CudaBackend::sum(const Tensor& x, const Tensor& out, bool accumulate, double divisor) {
  visit_floating("sum", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    sum_of_all(x.device(), x.data<T>(), x.numel(), Put<T>{out.data<T>(), accumulate, 1 / divisor});
  });
}

void CudaBackend::sum_rows(const Tensor& x, const Tensor& out, bool accumulate, double divisor) {
  divided(out, accumulate, divisor, [&](const Tensor& to, bool add) {
    visit_floating("sum_rows", x.dtype(), [&](auto zero) {
      using T = decltype(zero);
      sum_middle(x.device(), x.data<T>(), 1, x.size(0), x.size(1), to.data<T>(), add);
    });
  });
}

void CudaBackend::sum_cols(const Tensor& x, const Tensor& out, bool accumulate, double divisor) {
  visit_floating("sum_cols", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    sum_of_rows(x.device(), x.data<T>(), x.size(0), x.size(1),
                Put<T>{out.data<T>(), accumulate, 1 / divisor});
  });
}

/// Sums over one dimension after the other, the innermost first.
void CudaBackend::sum_to(const Tensor& x, const Tensor& out, bool accumulate, double divisor) {
  if (divisor != 1)
    return divided(out, accumulate, divisor,
                   [&](const Tensor& to, bool add) { sum_to(x, to, add, 1); });
  StridePlan plan = broadcast_plan(out.shape(), x.shape(), x.shape());
  Tensor from = x.detach();
  std::int64_t outer = x.numel(), inner = 1;
  for (std::size_t d = 0; d < static_cast<std::size_t>(plan.rank); ++d) {
    const std::int64_t size = plan.sizes[d];
    outer /= size;
    if (plan.stride_a[d] != 0) {
      inner *= size;
      continue;
    }
    const bool last = outer * inner == out.numel();
    const Tensor to = last ? out.detach() : Tensor::empty({outer, inner}, x.dtype(), x.device());
    visit_floating("sum_to", x.dtype(), [&](auto zero) {
      using T = decltype(zero);
      sum_middle(x.device(), from.data<T>(), outer, size, inner, to.data<T>(), last && accumulate);
    });
    from = to;
  }
}

void CudaBackend::norm(const Tensor& x, const Tensor& out) {
  const Tensor wide = Tensor::empty(x.shape(), DType::f64, x.device());
  const Tensor squares = Tensor::empty(out.shape(), DType::f64, x.device());
  kernels::cast(x, wide);
  kernels::binary(Binary::mul, wide, wide, wide);
  kernels::sum_to(wide, squares);
  kernels::unary(Unary::sqrt, squares, squares);
  kernels::cast(squares, out);
}

void CudaBackend::argmax(const Tensor& any, bool smallest, const Tensor& out) {
  const std::int64_t rows = out.numel(), columns = any.size(1);
  Tensor x = any;
  if (any.size(2) > 1) {
    x = Tensor::empty({any.size(0), any.size(2), columns}, any.dtype(), any.device());
    kernels::transpose(any, x);
  }
  if (smallest) {
    const Tensor opposite = Tensor::empty(x.shape(), x.dtype(), x.device());
    kernels::unary(Unary::neg, x, opposite);
    x = opposite;
  }
  visit_floating("argmax", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    with_width<T>(rows == 1 || packs_fit<T>(columns), [&](auto width) {
      reduce_rows(x.device(), Candidates<T, width>(x.data<T>()), rows, columns,
                  PutColumn<T>{out.data<std::int64_t>(), columns});
    });
  });
}

void CudaBackend::find_nonfinite(const Tensor& x, const Tensor& flag) {
  if (x.numel() == 0) return;
  visit_floating("find_nonfinite", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T* elements = x.data<T>();
    launch<find_nonfinite_kernel<T>>(
        {.grid = blocks_for(x.numel(), 4 * reduce_threads * pack_width<T>),
         .block = reduce_threads},
        queue_of(x).stream, elements, is_aligned(elements), x.numel(), flag.data<std::int32_t>());
  });
}

}  // namespace lockstep::kernels
