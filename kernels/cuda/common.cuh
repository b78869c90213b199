#pragma once
/// What the kernels of this folder share: 16-byte accesses and launch shapes.
///
/// A GPU reaches its memory bandwidth when a thread moves 16 bytes per access and has several
/// accesses under way before it uses the first. A kernel whose comment says "16-byte loads" does so
/// wherever its pointers are multiples of 16; a tensor may be a slice that begins at any element,
/// and then it takes a path of single elements.

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "lockstep/core/cuda/launch.h"
#include "lockstep/core/cuda/stream.h"
#include "lockstep/kernels/cuda/divide_up.h"

namespace lockstep::kernels {

/// How many elements of type T 16 bytes hold.
template <class T>
inline constexpr int pack_width = 16 / static_cast<int>(sizeof(T));

/// `width` neighbouring elements, in registers. Loaded and stored as a whole, in accesses of at
/// most 16 bytes each.
template <class T, int width = pack_width<T>>
struct alignas(std::min<std::size_t>(16, sizeof(T) * width)) Pack {
  T values[width];
  __device__ T& operator[](int i) { return values[i]; }
  __device__ const T& operator[](int i) const { return values[i]; }
};

/// Whether `width` elements at p can be accessed as a Pack.
template <int width, class T>
__host__ __device__ __forceinline__ bool is_aligned(const T* p) {
  return reinterpret_cast<std::uintptr_t>(p) % alignof(Pack<T, width>) == 0;
}
/// Whether 16-byte accesses may begin at p.
template <class T>
__host__ __device__ __forceinline__ bool is_aligned(const T* p) {
  return reinterpret_cast<std::uintptr_t>(p) % 16 == 0;
}

namespace detail {

__extension__ typedef unsigned __int128 Bits128;

/// An integer of this many bytes.
template <std::size_t bytes>
using Bits = std::conditional_t<
    bytes == 16, Bits128,
    std::conditional_t<
        bytes == 8, std::uint64_t,
        std::conditional_t<bytes == 4, std::uint32_t,
                           std::conditional_t<bytes == 2, std::uint16_t, std::uint8_t>>>>;

/// The same over memory of other types.
template <std::size_t bytes>
struct __attribute__((may_alias)) Word {
  Bits<bytes> bits;
};

}  // namespace detail

/// p must be aligned.
template <int width, class T>
__device__ __forceinline__ Pack<T, width> load_pack(const T* p) {
  return *reinterpret_cast<const Pack<T, width>*>(p);
}
template <class T>
__device__ __forceinline__ Pack<T> load_pack(const T* p) {
  return *reinterpret_cast<const Pack<T>*>(p);
}
/// As integers of up to 128 bits: a structure's store, unlike its load, the compiler takes apart
/// into its elements, and does not always put together again.
template <class T, int width>
__device__ __forceinline__ void store_pack(T* p, const Pack<T, width>& pack) {
  using Word = detail::Word<alignof(Pack<T, width>)>;
  constexpr int in_word = sizeof(Word) / sizeof(T);
#pragma unroll
  for (int w = 0; w < width / in_word; ++w) {
    decltype(Word::bits) bits = 0;
#pragma unroll
    for (int e = in_word - 1; e >= 0; --e) {
      if constexpr (in_word > 1) bits <<= 8 * sizeof(T);
      bits |= __builtin_bit_cast(detail::Bits<sizeof(T)>, pack[w * in_word + e]);
    }
    reinterpret_cast<Word*>(p)[w].bits = bits;
  }
}

// Launch shapes.

/// Blocks for n items of which a block does `per_block`. Throws ShapeError beyond the 2^31 - 1
/// blocks that a grid has room for.
inline dim3 blocks_for(std::int64_t n, std::int64_t per_block) {
  const std::int64_t blocks = divide_up(n, per_block);
  check<ShapeError>(blocks < std::int64_t{1} << 31, "[kernel] {} elements need {} blocks", n,
                    blocks);
  return dim3(static_cast<unsigned>(blocks));
}

/// The same for kernels whose blocks stride over the grid: at most `per_multiprocessor` blocks for
/// each multiprocessor. Not for sums: their order must not depend on the GPU.
inline dim3 strided_blocks_for(Device device, std::int64_t n, std::int64_t per_block,
                               int per_multiprocessor) {
  const std::int64_t most =
      std::int64_t{lockstep::cuda::multiprocessors(device)} * per_multiprocessor;
  return dim3(static_cast<unsigned>(std::min(divide_up(n, per_block), most)));
}

/// The larger one; NaN wins.
struct Max {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a > b || a != a ? a : b;
  }
};

inline constexpr int warp_size = 32;
inline constexpr unsigned all_lanes = 0xffffffffu;

}  // namespace lockstep::kernels
