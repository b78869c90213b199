#pragma once
/// Reductions along the rows of a matrix (rows, columns): sums, maxima and whatever else folds.
///
/// What is reduced is described by a Source:
///
///   using Fold      how two values become one: operator()(Value, Value), commutative, associative
///                   but for rounding; its identity() is the value of nothing
///   using Terms     what one access of a thread brings
///   width           how many neighbouring elements that is
///   using State     what a thread folds its terms into; start(), value(state)
///   load(at)        the terms of the elements [at, at + width), from the matrix's beginning
///   load_first(at, count)   of the first `count` of them, where the others are not in the row and
///                           count as nothing; only for width > 1
///   absorb(state, terms, at)
///
/// and where the results go by a Sink: put(index, value).
///
/// Order. A row of up to 1024 elements is folded by up to 32 threads of a warp; a longer one, or
/// one that is alone, is cut into chunks of 16384, each folded by a block, and the chunks' values
/// are folded the same way. A thread folds every so-many'th access' terms one after the other, then
/// the threads' values are folded pairwise. All of it depends on the shape alone.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "lockstep/kernels/cuda/common.cuh"

namespace lockstep::kernels {

// Folds over teams: `lanes` neighbouring threads, a power of two; up to 32 within a warp, or else
// the whole block.

template <class T>
__device__ __forceinline__ T shuffled(T value, int distance) {
  return __shfl_xor_sync(all_lanes, value, distance);
}

/// All values of a team in one, which each of its threads gets. All threads of the block must take
/// part. `shared` is overwritten, and may be used again at once.
template <class Value, class F>
__device__ __forceinline__ Value team_fold(Value value, F f, int lanes,
                                           Value (&shared)[warp_size]) {
  for (int distance = min(lanes, warp_size) / 2; distance > 0; distance /= 2)
    value = f(value, shuffled(value, distance));
  if (lanes <= warp_size) return value;
  const int lane = static_cast<int>(threadIdx.x) % warp_size, warps = lanes / warp_size;
  if (lane == 0) shared[threadIdx.x / warp_size] = value;
  __syncthreads();
  value = shared[lane % warps];
  for (int distance = warps / 2; distance > 0; distance /= 2)
    value = f(value, shuffled(value, distance));
  __syncthreads();
  return value;
}

// Sinks.

/// out[index] (+)= factor * value.
template <class T>
struct Put {
  T* out;
  bool accumulate = false;
  double factor = 1;

  template <class Value>
  __device__ void put(std::int64_t index, Value value) const {
    const T scaled = static_cast<T>(factor * static_cast<double>(value));
    out[index] = accumulate ? out[index] + scaled : scaled;
  }
};

/// Keeps the values as they are.
template <class Value>
struct Keep {
  Value* out;
  __device__ void put(std::int64_t index, const Value& value) const { out[index] = value; }
};

// Sources.

/// Adds up; any type of terms.
template <class T>
struct Adding {
  using Value = T;
  static __device__ T identity() { return T(0); }
  __device__ T operator()(T a, T b) const { return a + b; }
};

/// For sources whose terms are numbers to be added: one sum per place in an access, which are added
/// in the end.
template <class T, int width_>
struct SumSource {
  static constexpr int width = width_;
  using Fold = Adding<T>;
  using Terms = Pack<T, width>;
  using State = Pack<T, width>;

  static __device__ State start() {
    State sums;
#pragma unroll
    for (int i = 0; i < width; ++i) sums[i] = T(0);
    return sums;
  }
  static __device__ void absorb(State& sums, const Terms& terms, std::int64_t) {
#pragma unroll
    for (int i = 0; i < width; ++i) sums[i] += terms[i];
  }
  static __device__ T value(const State& sums) {
    T total = sums[0];
#pragma unroll
    for (int i = 1; i < width; ++i) total += sums[i];
    return total;
  }
};

/// `width` elements at x, of which only the first `count` exist.
template <int width, class T>
__device__ __forceinline__ Pack<T, width> load_some(const T* x, int count) {
  Pack<T, width> pack;
#pragma unroll
  for (int i = 0; i < width; ++i) pack[i] = i < count ? x[i] : T(0);
  return pack;
}

/// The same elements in the same places, whether x is aligned or not.
template <int width, class T>
__device__ __forceinline__ Pack<T, width> load_pack(const T* x, bool aligned) {
  return aligned ? load_pack<width>(x) : load_some<width>(x, width);
}

template <class T, int width>
__device__ __forceinline__ void store_pack(T* x, const Pack<T, width>& pack, bool aligned) {
  if (aligned) return store_pack(x, pack);
#pragma unroll
  for (int i = 0; i < width; ++i) x[i] = pack[i];
}

/// The sum of the elements of x.
template <class T, int width_>
struct Elements : SumSource<T, width_> {
  const T* x;
  bool aligned;

  explicit Elements(const T* elements) : x(elements), aligned(is_aligned<width_>(elements)) {}
  __device__ Pack<T, width_> load(std::int64_t at) const {
    return load_pack<width_>(x + at, aligned);
  }
  __device__ Pack<T, width_> load_first(std::int64_t at, int count) const {
    return load_some<width_>(x + at, count);
  }
};

/// Values that an earlier reduction kept.
template <class Fold_>
struct Kept {
  static constexpr int width = 1;
  using Fold = Fold_;
  using Value = typename Fold::Value;
  using Terms = Value;
  using State = Value;
  const Value* values;

  static __device__ State start() { return Fold::identity(); }
  static __device__ Value value(const State& state) { return state; }
  __device__ Terms load(std::int64_t at) const { return values[at]; }
  static __device__ void absorb(State& state, const Terms& terms, std::int64_t) {
    state = Fold()(state, terms);
  }
};

// Kernels.

inline constexpr int reduce_threads = 256;
inline constexpr std::int64_t reduce_chunk = 16384;      ///< elements that a block reduces
inline constexpr std::int64_t longest_short_row = 1024;  ///< that a warp reduces

/// The elements [begin, end) that are the thread's share, with four accesses under way at once.
template <class Source>
__device__ __forceinline__ auto reduce_share(const Source& source, std::int64_t begin,
                                             std::int64_t end, int lane, int lanes) {
  constexpr int unroll = 4, width = Source::width;
  const std::int64_t step = std::int64_t{lanes} * width;
  auto state = source.start();
  std::int64_t at = begin + lane * width;
  for (; at + (unroll - 1) * step + width <= end; at += unroll * step) {
    typename Source::Terms terms[unroll];
#pragma unroll
    for (int i = 0; i < unroll; ++i) terms[i] = source.load(at + i * step);
#pragma unroll
    for (int i = 0; i < unroll; ++i) source.absorb(state, terms[i], at + i * step);
  }
  for (; at + width <= end; at += step) source.absorb(state, source.load(at), at);
  if constexpr (width > 1)
    if (at < end) source.absorb(state, source.load_first(at, static_cast<int>(end - at)), at);
  return source.value(state);
}

/// A block per chunk; results are numbered row * chunks + chunk. 16-byte loads.
template <class Source, class Sink>
__global__ void __launch_bounds__(reduce_threads)
    reduce_chunks_kernel(const Source source, std::int64_t columns, std::int64_t chunks,
                         const Sink sink) {
  using Value = typename Source::Fold::Value;
  __shared__ Value shared[warp_size];
  const std::int64_t row = blockIdx.x / chunks, chunk = blockIdx.x - row * chunks;
  const std::int64_t begin = row * columns + chunk * reduce_chunk;
  const std::int64_t end = min(begin + reduce_chunk, (row + 1) * columns);
  const Value own = reduce_share(source, begin, end, static_cast<int>(threadIdx.x), reduce_threads);
  const Value total = team_fold(own, typename Source::Fold(), reduce_threads, shared);
  if (threadIdx.x == 0) sink.put(blockIdx.x, total);
}

/// `team` threads of a warp per row. 16-byte loads.
template <class Source, class Sink>
__global__ void __launch_bounds__(reduce_threads)
    reduce_short_rows_kernel(const Source source, std::int64_t rows, std::int64_t columns, int team,
                             const Sink sink) {
  using Value = typename Source::Fold::Value;
  __shared__ Value shared[warp_size];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % team;
  const std::int64_t row = std::int64_t{blockIdx.x} * (reduce_threads / team) + thread / team;
  const std::int64_t begin = row * columns, end = row < rows ? begin + columns : begin;
  const Value own = reduce_share(source, begin, end, lane, team);
  const Value total = team_fold(own, typename Source::Fold(), team, shared);
  if (lane == 0 && row < rows) sink.put(row, total);
}

// Launching.

/// How many threads of a warp share a row of so many accesses.
inline int lanes_for(std::int64_t accesses) {
  const auto wanted = static_cast<std::uint64_t>(std::clamp<std::int64_t>(accesses, 1, warp_size));
  return static_cast<int>(std::bit_ceil(wanted));
}

/// Whether a single row may be added up in another order than one of several: a rank may have a
/// single sample, and must then get the bits that others get (core/lanes.h).
enum class OneRow : bool { as_of_several, alone };

template <class Source, class Sink>
void reduce_rows(Device, const Source&, std::int64_t rows, std::int64_t columns, const Sink&,
                 OneRow = OneRow::alone);

/// sink.put(row, the row's value) for each of `rows` rows; also where `columns` is 0. With a block
/// or more for each row.
template <class Source, class Sink>
void reduce_long_rows(Device device, const Source& source, std::int64_t rows, std::int64_t columns,
                      const Sink& sink, OneRow one = OneRow::alone) {
  if (rows == 0) return;
  const cudaStream_t stream = lockstep::cuda::queue_of(device).stream;
  const std::int64_t chunks = std::max<std::int64_t>(1, divide_up(columns, reduce_chunk));
  const auto run = [&]<class To>(const To& to) {
    lockstep::cuda::launch<reduce_chunks_kernel<Source, To>>(
        {.grid = blocks_for(rows * chunks, 1), .block = reduce_threads}, stream, source, columns,
        chunks, to);
  };
  if (chunks == 1) return run(sink);
  using Fold = typename Source::Fold;
  using Value = typename Fold::Value;
  const Tensor partial =
      Tensor::empty({rows * chunks * static_cast<std::int64_t>(sizeof(Value))}, DType::u8, device);
  Value* values = reinterpret_cast<Value*>(partial.raw());
  run(Keep<Value>{values});
  reduce_rows(device, Kept<Fold>{values}, rows, chunks, sink, one);
}

/// The same, with some threads of a warp for each row if rows are short, and more than one.
template <class Source, class Sink>
void reduce_rows(Device device, const Source& source, std::int64_t rows, std::int64_t columns,
                 const Sink& sink, OneRow one) {
  const bool is_alone = rows == 1 && one == OneRow::alone;
  if (rows == 0 || is_alone || columns > longest_short_row)
    return reduce_long_rows(device, source, rows, columns, sink, one);
  const int team = lanes_for(divide_up(columns, Source::width));
  lockstep::cuda::launch<reduce_short_rows_kernel<Source, Sink>>(
      {.grid = blocks_for(rows, reduce_threads / team), .block = reduce_threads},
      lockstep::cuda::queue_of(device).stream, source, rows, columns, team, sink);
}

/// Whether rows of so many elements are whole 16-byte accesses, so that each begins on a multiple
/// of 16 if the first one does.
template <class T>
constexpr bool packs_fit(std::int64_t columns) {
  return columns % pack_width<T> == 0;
}

/// Calls f with the number of elements per access, as a constant: 16 bytes of them, or one. To be
/// chosen by the shape, never by where the data happens to lie: orders of sums depend on it.
template <class T, class F>
void with_width(bool packs, F&& f) {
  if (packs)
    f(std::integral_constant<int, pack_width<T>>{});
  else
    f(std::integral_constant<int, 1>{});
}

/// out_i (+)= factor * the sum of row i of x (rows, columns).
template <class T>
void sum_of_rows(Device device, const T* x, std::int64_t rows, std::int64_t columns,
                 const Put<T>& out) {
  with_width<T>(packs_fit<T>(columns), [&](auto width) {
    reduce_rows(device, Elements<T, width>(x), rows, columns, out, OneRow::as_of_several);
  });
}

/// out (+)= factor * the sum of n elements, which need not be whole accesses.
template <class T>
void sum_of_all(Device device, const T* x, std::int64_t n, const Put<T>& out) {
  reduce_rows(device, Elements<T, pack_width<T>>(x), 1, n, out);
}

// Sums that are structures of several f64 (a Part: kernels/formulas/batch_norm_parts.h).

/// `size` Parts in shared or global memory, number by number: f64 (numbers of a Part, size). So
/// neighbouring threads, or columns, are neighbours in memory: structures of 16 and 24 bytes side
/// by side would take 7 to 14 wavefronts where 2 do.
template <class Part>
struct Planes {
  static constexpr int numbers = sizeof(Part) / sizeof(double);
  double* at;
  std::int64_t size;

  __device__ Part load(std::int64_t i) const {
    double values[numbers];
#pragma unroll
    for (int n = 0; n < numbers; ++n) values[n] = at[n * size + i];
    Part part;
    memcpy(&part, values, sizeof part);
    return part;
  }
  __device__ void store(std::int64_t i, const Part& part) const {
    double values[numbers];
    memcpy(values, &part, sizeof part);
#pragma unroll
    for (int n = 0; n < numbers; ++n) at[n * size + i] = values[n];
  }
};

/// Merges `width` Parts of each thread of a block, those of neighbouring columns, over `rows` rows
/// of neighbouring threads.
template <class Part, int rows, int threads, int width>
struct BlockMerge {
  static constexpr int across = threads / rows, columns = across * width;
  /// From a thread's k-th part to its next one: a few more than there are threads, so that 16
  /// neighbouring columns lie in different banks.
  static constexpr int pitch = threads + 16 / width;
  using Memory = double[Planes<Part>::numbers * width * pitch];

  Planes<Part> shared;
  int thread = static_cast<int>(threadIdx.x), row = thread / across;

  __device__ explicit BlockMerge(Memory& memory) : shared{memory, width * pitch} {}

  /// own := that of row 0 and of all others, merged by halves; right in row 0 alone. All threads of
  /// the block call it. Those of a row are written once, when they are merged; row 0's never.
  __device__ void operator()(Part (&own)[width]) const {
#pragma unroll
    for (int half = rows / 2; half > 0; half /= 2) {
      if (row >= half && row < 2 * half) put(own);
      __syncthreads();
      if (row < half) {
#pragma unroll
        for (int k = 0; k < width; ++k)
          own[k].merge(shared.load(k * pitch + thread + half * across));
      }
    }
  }

  /// What row 0 has then, column by column: thread c gets that of column c, if there is one. All
  /// threads of the block call it.
  __device__ Part by_column(const Part (&own)[width]) const {
    if (row == 0) put(own);
    __syncthreads();
    return thread < columns ? shared.load(thread % width * pitch + thread / width) : Part{};
  }

 private:
  __device__ void put(const Part (&own)[width]) const {
#pragma unroll
    for (int k = 0; k < width; ++k) shared.store(k * pitch + thread, own[k]);
  }
};

}  // namespace lockstep::kernels
