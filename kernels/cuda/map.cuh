#pragma once
/// The shape of every elementwise kernel: out_i = f(a_i, b_i, ...), with 16-byte accesses.
///
///   template <class T>
///   __global__ void add_kernel(std::int64_t n, T* out, const T* a, const T* b) {
///     map_elements<2>(n, [](T x, T y) { return x + y; }, out, a, b);
///   }
///   launch<add_kernel<T>>({.grid = map_blocks<2, T>(n), .block = map_threads}, stream,
///                         n, out, a, b);
///
/// An input is an array like the output, a `Repeated` one, or what the output has (`Before`). An
/// output may be one of its inputs.

#include <type_traits>

#include "lockstep/kernels/broadcast.h"
#include "lockstep/kernels/cuda/common.cuh"

namespace lockstep::kernels {

inline constexpr int map_threads = 128;

/// What a thread does in map_elements<packs>, where T is the widest type: this many 16-byte
/// accesses to it, all under way at once. 4 do for one input, 2 for more.
template <int packs, class T>
inline dim3 map_blocks(std::int64_t n) {
  return blocks_for(n, map_threads * packs * pack_width<T>);
}

// An input is asked for `width` elements from i on, after it was asked whether it has them in
// packs.

template <int width, class T>
__device__ __forceinline__ bool has_packs(const T* x) {
  return is_aligned<width>(x);
}
template <int width, class T>
__device__ __forceinline__ Pack<T, width> read_pack(const T* x, std::int64_t i) {
  return load_pack<width>(x + i);
}

/// An operand repeated to the output's shape by the rules of broadcasting.
template <class T>
struct Repeated {
  const T* data;
  bool whole;  ///< as many elements as the output: nothing is repeated
  int rank;    ///< the rest is a StridePlan's, innermost dimension first
  std::int64_t sizes[Shape::max_rank];
  std::int64_t strides[Shape::max_rank];

  /// `strides` is the plan's stride_a or stride_b; `n` the output's number of elements.
  Repeated(const Tensor& x, const StridePlan& plan,
           const std::array<std::int64_t, Shape::max_rank>& plan_strides, std::int64_t n)
      : data(x.data<T>()), whole(x.numel() == n), rank(plan.rank) {
    std::copy(plan.sizes.begin(), plan.sizes.end(), sizes);
    std::copy(plan_strides.begin(), plan_strides.end(), strides);
  }

  /// The operand's offset at element i of the output.
  __device__ std::int64_t offset(std::int64_t i) const {
    std::int64_t result = 0;
#pragma unroll 1
    for (int d = 0; d + 1 < rank; ++d) {
      const std::int64_t outer = i / sizes[d];
      result += (i - outer * sizes[d]) * strides[d];
      i = outer;
    }
    return result + i * strides[rank - 1];
  }

  /// Whether `width` elements from a multiple of width on never cross the end of an innermost run:
  /// then they are neighbours, or all the same.
  template <int width>
  __device__ bool in_runs() const {
    return rank == 1 || sizes[0] % width == 0;
  }
};

template <int width, class T>
__device__ __forceinline__ bool has_packs(const Repeated<T>& x) {
  const bool neighbours = x.whole || (x.strides[0] == 1 && x.template in_runs<width>());
  return !neighbours || is_aligned<width>(x.data);
}
template <int width, class T>
__device__ __forceinline__ Pack<T, width> read_pack(const Repeated<T>& x, std::int64_t i) {
  if (x.whole) return load_pack<width>(x.data + i);
  Pack<T, width> pack;
  if (x.template in_runs<width>()) {
    const T* from = x.data + x.offset(i);
    if (x.strides[0] == 1) return load_pack<width>(from);
    const T value = *from;
#pragma unroll
    for (int e = 0; e < width; ++e) pack[e] = value;
  } else {
#pragma unroll
    for (int e = 0; e < width; ++e) pack[e] = x.data[x.offset(i + e)];
  }
  return pack;
}

/// What the output has so far, for a kernel that may add to it. Without data it is 0, and costs
/// nothing: one kernel does for both.
template <class T>
struct Before {
  const T* data;
};

template <int width, class T>
__device__ __forceinline__ bool has_packs(const Before<T>&) {
  return true;  // as the output, which map_elements looks at
}
template <int width, class T>
__device__ __forceinline__ Pack<T, width> read_pack(const Before<T>& x, std::int64_t i) {
  return x.data == nullptr ? Pack<T, width>{} : load_pack<width>(x.data + i);
}

namespace detail {

template <class T>
T element_of(const T*);
template <class T>
T element_of(const Before<T>&);
template <class T>
T element_of(const Repeated<T>&);
template <class In>
using Element = decltype(element_of(std::declval<In>()));

/// The packs of one thread: number u begins at element first + u * map_threads * width.
template <class T, int width, int accesses>
struct Tile {
  Pack<T, width> packs[accesses];
};

template <int width>
__device__ __forceinline__ std::int64_t tile_element(int accesses, int u) {
  const std::int64_t tile = std::int64_t{blockIdx.x} * (map_threads * accesses);
  return (tile + u * map_threads + threadIdx.x) * width;
}

template <int width, int accesses, class In>
__device__ __forceinline__ auto read_tile(std::int64_t n, const In& in) {
  Tile<Element<In>, width, accesses> tile;
#pragma unroll
  for (int u = 0; u < accesses; ++u) {
    const std::int64_t i = tile_element<width>(accesses, u);
    if (i + width <= n) tile.packs[u] = read_pack<width>(in, i);
  }
  return tile;
}

template <int width, int accesses, class F, class Out, class... T>
__device__ __forceinline__ void write_tile(std::int64_t n, F f, Out* out,
                                           const Tile<T, width, accesses>&... in) {
#pragma unroll
  for (int u = 0; u < accesses; ++u) {
    const std::int64_t i = tile_element<width>(accesses, u);
    if (i + width > n) continue;
    Pack<Out, width> result;
#pragma unroll
    for (int e = 0; e < width; ++e) result[e] = f(in.packs[u][e]...);
    store_pack(out + i, result);
  }
}

template <int width, int accesses, class F, class Out, class... In>
__device__ __forceinline__ void map_packs(std::int64_t n, F f, Out* out, const In&... in) {
  // All reads come before the first write: the compiler could not move them up by itself, since the
  // output may be an input.
  write_tile(n, f, out, read_tile<width, accesses>(n, in)...);
  if constexpr (width > 1) {  // what is left after the last full pack
    const std::int64_t i = n - n % width + threadIdx.x;
    if (blockIdx.x == 0 && i < n) out[i] = f(read_pack<1>(in, i)[0]...);
  }
}

template <class... T>
inline constexpr std::size_t largest_size = std::max({sizeof(T)...});

}  // namespace detail

/// out_i = f(in_i, ...) for i < n. The grid is map_blocks<packs, the widest type>(n).
template <int packs, class F, class Out, class... In>
__device__ __forceinline__ void map_elements(std::int64_t n, F f, Out* out, const In&... in) {
  constexpr int width = 16 / static_cast<int>(detail::largest_size<Out, detail::Element<In>...>);
  if (is_aligned<width>(out) && (has_packs<width>(in) && ...))
    detail::map_packs<width, packs>(n, f, out, in...);
  else
    detail::map_packs<1, packs * width>(n, f, out, in...);
}

}  // namespace lockstep::kernels
