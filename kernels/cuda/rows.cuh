#pragma once
/// What softmax and cross-entropy do with the rows of a matrix (rows, columns).
///
/// A row of up to 16384 f32 elements (8192 if it is no multiple of 16 bytes), or 4096 f64 elements,
/// is read once, and stays in the registers of a team: some threads of a warp, or a whole block.
/// Longer rows are read twice: first chunk by chunk for their statistics (reduction.cuh), then to
/// be mapped.

#include <cmath>
#include <limits>

#include "lockstep/kernels/cuda/reduction.cuh"

namespace lockstep::kernels {

template <class T>
__device__ __forceinline__ T exp_of(T x) {
  using std::exp;
  return exp(x);
}
template <class T>
__device__ __forceinline__ T log_of(T x) {
  using std::log;
  return log(x);
}

template <class T>
inline constexpr T least = -std::numeric_limits<T>::infinity();

// Rows in registers.

/// What one thread of a team holds of a row: access p is the elements from (p * lanes + lane) *
/// width on. A row is a whole number of accesses.
template <class T, int width, int accesses>
struct RowShare {
  Pack<T, width> packs[accesses];
  int lane, lanes, columns;

  /// With columns = 0 of no row at all: nothing is read or written.
  __device__ RowShare(int lane_, int lanes_, int columns_)
      : lane(lane_), lanes(lanes_), columns(columns_) {}

  __device__ int column(int access) const { return (access * lanes + lane) * width; }

  __device__ void load(const T* row, bool aligned) {
#pragma unroll
    for (int p = 0; p < accesses; ++p)
      if (column(p) < columns) packs[p] = load_pack<width>(row + column(p), aligned);
  }
  __device__ void store(T* row, bool aligned) const {
#pragma unroll
    for (int p = 0; p < accesses; ++p)
      if (column(p) < columns) store_pack(row + column(p), packs[p], aligned);
  }

  /// f(element, its column) for each.
  template <class F>
  __device__ __forceinline__ void for_each(F f) {
#pragma unroll
    for (int p = 0; p < accesses; ++p) {
      if (column(p) >= columns) continue;
#pragma unroll
      for (int i = 0; i < width; ++i) f(packs[p][i], column(p) + i);
    }
  }

  /// The largest element of the team's row, or NaN.
  __device__ __forceinline__ T max(T (&shared)[warp_size]) {
    T largest = least<T>;
    for_each([&](T& x, int) { largest = Max()(x, largest); });
    return team_fold(largest, Max(), lanes, shared);
  }

  /// The sum of term(element, column) over the team's row; `term` may change the element.
  template <class F>
  __device__ __forceinline__ T sum(T (&shared)[warp_size], F term) {
    T total = 0;
    for_each([&](T& x, int column) { total += term(x, column); });
    return team_fold(total, Adding<T>(), lanes, shared);
  }
};

/// Threads of a block for one row. Registers are 4 bytes: of f64, a block's are enough for half as
/// many. (Kernels say in their __launch_bounds__ that one block per multiprocessor will do: else
/// the compiler may spill for the sake of more.)
template <class T>
inline constexpr int largest_team = 4096 / static_cast<int>(sizeof(T));

/// How rows are shared: `lanes` threads each, in blocks of `threads`.
struct RowTeams {
  int lanes;
  int threads;
  int per_block() const { return threads / lanes; }
};

/// Calls f(width, accesses, teams), the first two of RowShare as constants, and returns true; or
/// returns false if rows of so many columns do not fit into registers. A function of `columns`. A
/// team has at most `largest` threads.
template <class T, int largest = largest_team<T>, class F>
bool with_rows_in_registers(std::int64_t columns, F&& f) {
  const auto attempt = [&](auto width, auto accesses) {
    const std::int64_t wanted = std::max<std::int64_t>(1, divide_up(columns, width * accesses));
    if (wanted > (accesses == 1 ? warp_size : largest)) return false;
    auto lanes = static_cast<int>(std::bit_ceil(static_cast<std::uint64_t>(wanted)));
    if (accesses > 1) lanes = std::max(lanes, warp_size);  // whose threads read neighbours
    f(width, accesses, RowTeams{lanes, lanes > warp_size ? lanes : 256});
    return true;
  };
  constexpr std::integral_constant<int, 1> one;
  constexpr std::integral_constant<int, 4> four;
  constexpr std::integral_constant<int, 8> eight;
  if (packs_fit<T>(columns)) {
    constexpr std::integral_constant<int, pack_width<T>> wide;
    return attempt(wide, one) || attempt(wide, four);
  }
  if (columns <= 4 * warp_size) return attempt(one, one) || attempt(one, four);
  return attempt(one, eight);
}

// Longer rows.

/// The largest element of a row, or of some of its elements, and the sum of exp(x - largest), where
/// -infinity as the largest counts as 0.
template <class T>
struct ExpSum {
  T largest;
  T total;
};

template <class T>
__device__ __forceinline__ ExpSum<T> shuffled(const ExpSum<T>& mine, int distance) {
  return {__shfl_xor_sync(all_lanes, mine.largest, distance),
          __shfl_xor_sync(all_lanes, mine.total, distance)};
}

/// Brings two sums to the larger of their two maxima (Milakov & Gimelshein, "Online normalizer
/// calculation for softmax", 2018, section 3.1).
template <class T>
struct MergeExpSums {
  using Value = ExpSum<T>;
  static __device__ Value identity() { return {least<T>, T(0)}; }
  __device__ Value operator()(const Value& a, const Value& b) const {
    if (a.largest == b.largest) return {a.largest, a.total + b.total};
    const bool first = a.largest > b.largest;
    const Value &large = first ? a : b, &small = first ? b : a;
    return {large.largest, large.total + small.total * exp_of(small.largest - large.largest)};
  }
};

/// The source of a row's ExpSum.
template <class T, int width_>
struct Exponentials {
  static constexpr int width = width_;
  using Fold = MergeExpSums<T>;
  using Terms = Pack<T, width>;
  using State = ExpSum<T>;
  const T* x;
  bool aligned;

  explicit Exponentials(const T* elements) : x(elements), aligned(is_aligned<width_>(elements)) {}
  __device__ Terms load(std::int64_t at) const { return load_pack<width>(x + at, aligned); }
  __device__ Terms load_first(std::int64_t at, int count) const {
    Terms terms;
#pragma unroll
    for (int i = 0; i < width; ++i) terms[i] = i < count ? x[at + i] : least<T>;
    return terms;
  }
  static __device__ State start() { return Fold::identity(); }
  static __device__ void absorb(State& state, const Terms& terms, std::int64_t) {
    T largest = state.largest;
#pragma unroll
    for (int i = 0; i < width; ++i) largest = Max()(terms[i], largest);
    if (largest > state.largest) {
      state.total *= exp_of(state.largest - largest);
      state.largest = largest;
    }
    const T shift = largest == least<T> ? T(0) : largest;
#pragma unroll
    for (int i = 0; i < width; ++i) state.total += exp_of(terms[i] - shift);
  }
  static __device__ State value(const State& state) { return state; }
};

/// out (rows, columns) = f, a block per chunk of a row: f.row(row) is what its elements have in
/// common, f.template pack<width>(that, at) the elements of `out` from `at` on. Where f reads
/// `out`, it is at the same elements. 16-byte loads, several under way at once.
template <class T, int width, class F>
__global__ void __launch_bounds__(reduce_threads, 1)
    map_long_rows_kernel(std::int64_t columns, std::int64_t chunks, T* out, bool aligned,
                         const F f) {
  constexpr int unroll = 16 / static_cast<int>(sizeof(T));
  constexpr std::int64_t step = reduce_threads * width;
  const std::int64_t row = blockIdx.x / chunks, chunk = blockIdx.x - row * chunks;
  const std::int64_t begin = row * columns + chunk * reduce_chunk;
  const std::int64_t end = min(begin + reduce_chunk, (row + 1) * columns);
  const auto common = f.row(row);
  std::int64_t at = begin + std::int64_t{threadIdx.x} * width;
  for (; at + (unroll - 1) * step < end; at += unroll * step) {
    Pack<T, width> packs[unroll];
#pragma unroll
    for (int i = 0; i < unroll; ++i) packs[i] = f.template pack<width>(common, at + i * step);
#pragma unroll
    for (int i = 0; i < unroll; ++i) store_pack(out + at + i * step, packs[i], aligned);
  }
  for (; at < end; at += step) store_pack(out + at, f.template pack<width>(common, at), aligned);
}

template <class T, int width, class F>
void map_long_rows(Device device, std::int64_t rows, std::int64_t columns, T* out, const F& f) {
  if (rows == 0) return;
  const std::int64_t chunks = divide_up(columns, reduce_chunk);
  lockstep::cuda::launch<map_long_rows_kernel<T, width, F>>(
      {.grid = blocks_for(rows * chunks, 1), .block = reduce_threads},
      lockstep::cuda::queue_of(device).stream, columns, chunks, out, is_aligned<width>(out), f);
}

/// One ExpSum per row of x, in `storage`, which keeps them.
template <class T, int width>
const ExpSum<T>* exp_sums(const Tensor& x, Tensor& storage) {
  const std::int64_t rows = x.size(0);
  storage =
      Tensor::empty({rows * static_cast<std::int64_t>(sizeof(ExpSum<T>))}, DType::u8, x.device());
  auto* sums = reinterpret_cast<ExpSum<T>*>(storage.raw());
  reduce_long_rows(x.device(), Exponentials<T, width>(x.data<T>()), rows, x.size(1),
                   Keep<ExpSum<T>>{sums}, OneRow::as_of_several);
  return sums;
}

}  // namespace lockstep::kernels
