// Casts and transposes on a GPU.
//
// Counted (./lockstep count --write; docs/counters.md):
//   cast_f32_bf16 65536: loads 16.00 (100 %), stores 8.00 (100 %), DRAM 1.00 of the fewest
//   cast_bf16_f32 65536: loads 8.00 (100 %), stores 16.00 (100 %), DRAM 1.00 of the fewest
//   cast_f32_f64 65536: loads 8.00 (100 %), stores 16.00 (100 %), DRAM 1.00 of the fewest
//   transpose_f32 256x256: loads 16.00 (100 %), stores 16.00 (100 %), shared loads 1.00 (1.00),
//     shared stores 1.00 (1.00), DRAM 1.00 of the fewest
//   transpose_f32 250x251: loads 4.79 (83 %), stores 4.66 (85 %), shared loads 1.00 (1.00),
//     shared stores 1.00 (1.00), DRAM 1.00 of the fewest
//   transpose_bf16 256x256: loads 16.00 (100 %), stores 16.00 (100 %), shared loads 1.00 (1.00),
//     shared stores 1.00 (1.00), DRAM 1.00 of the fewest
//   transpose_u8 256x256: loads 16.00 (100 %), stores 16.00 (100 %), shared loads 1.00 (1.00),
//     shared stores 1.00 (1.00), DRAM 1.00 of the fewest
//   transpose_f64 256x256: loads 16.00 (100 %), stores 16.00 (100 %), shared loads 2.00 (2.00),
//     shared stores 2.00 (2.00), DRAM 1.00 of the fewest
#include "lockstep/kernels/cuda/backend.h"
#include "lockstep/kernels/cuda/convert.cuh"
#include "lockstep/kernels/cuda/map.cuh"

namespace lockstep::kernels {
namespace {

using lockstep::cuda::launch;
using lockstep::cuda::queue_of;

/// out (n) = x (n), each thread 16 bytes at a time of the wider type.
template <class To, class From>
__global__ void __launch_bounds__(map_threads) cast_kernel(std::int64_t n, To* out, const From* x) {
  map_elements<2>(
      n, [](From value) { return convert<To>(value); }, out, x);
}

// Transposes. A block moves a square tile: rows of x in, through shared memory, columns out as rows
// of the result, so that both sides see runs of at least 128 bytes. Elements of 1 and 2 bytes go
// through shared memory in words of 4, from as many neighbouring rows.

constexpr int transpose_threads = 256;
constexpr int segment_packs = 8;  // a warp reads or writes 8 packs in each of 4 rows at a time

/// A tile of x (side, side), transposed: columns of x are its rows.
template <class T>
struct TransposedTile {
  /// Along a side: a multiple of 128 bytes.
  static constexpr int side = sizeof(T) == 1 ? 128 : sizeof(T) == 8 ? 32 : 64;
  static constexpr int word_bytes = sizeof(T) < 4 ? 4 : static_cast<int>(sizeof(T));
  static constexpr int in_word = word_bytes / static_cast<int>(sizeof(T));
  static constexpr int words_in_pack = 16 / word_bytes;
  using Bits = detail::Bits<word_bytes>;
  using Word = detail::Word<word_bytes>;

  alignas(16) T elements[side][side];

  /// Where word w of column c begins. Its five lowest bits are combined with those of c, so that
  /// neighbouring words of one column lie in different banks, and so do those of one w in
  /// neighbouring columns, or in every 4th, 8th or 16th.
  static __device__ int place(int c, int w) { return (w ^ (c ^ c / 32 * 4) % 32) * in_word; }

  __device__ T& element(int c, int r) { return elements[c][place(c, r / in_word) + r % in_word]; }
  __device__ Word& word(int c, int w) {
    return *reinterpret_cast<Word*>(&elements[c][place(c, w)]);
  }
};

/// Calls f(row, column) for the tile's patches of `height` rows and `width` columns that this
/// thread moves.
template <class T, int height, int width, class F>
__device__ __forceinline__ void for_each_patch(F f) {
  constexpr int side = TransposedTile<T>::side, down = side / height;
  constexpr int in_segment = width == 1 ? side : segment_packs;
  // More single elements would not fit into registers. (The simulator's compiler unrolls nothing.)
  [[maybe_unused]] constexpr int at_once = width == 1 ? 8 : 64;
#pragma unroll at_once
  for (int patch = 0; patch < down * side / width; patch += transpose_threads) {
    const int p = patch + static_cast<int>(threadIdx.x);
    const int segment = p / (in_segment * down);
    f(p / in_segment % down * height, (segment * in_segment + p % in_segment) * width);
  }
}

/// x (..., rows, columns) -> out (..., columns, rows), T an unsigned integer of the elements' size.
/// 16-byte loads where rows begin at multiples of 16 bytes, stores likewise.
template <class T>
__global__ void __launch_bounds__(transpose_threads, 1)
    transpose_kernel(std::int64_t rows, std::int64_t columns, const T* __restrict__ all_x,
                     T* __restrict__ all_out) {
  using Tile = TransposedTile<T>;
  using Bits = typename Tile::Bits;
  constexpr int side = Tile::side, width = pack_width<T>, in_word = Tile::in_word;
  __shared__ Tile tile;
  // Fewer than the grid's blocks: 32 bits do.
  const auto tiles_down = static_cast<unsigned>((rows + side - 1) / side);
  const auto tiles_across = static_cast<unsigned>((columns + side - 1) / side);
  const unsigned tile_row = blockIdx.x / tiles_across;  // counted through all matrices
  const std::int64_t row0 = static_cast<std::int64_t>(tile_row % tiles_down) * side;
  const std::int64_t column0 = static_cast<std::int64_t>(blockIdx.x % tiles_across) * side;
  const std::int64_t matrix = tile_row / tiles_down;
  const T* const x = all_x + matrix * rows * columns;
  T* const out = all_out + matrix * rows * columns;

  if (is_aligned(x) && columns % width == 0) {
    constexpr int patches = side * side / in_word / width / transpose_threads;
    Pack<T> packs[patches][in_word] = {};  // all under way before the first is stored
    int patch = 0;
    for_each_patch<T, in_word, width>([&](int r, int c) {
#pragma unroll
      for (int k = 0; k < in_word; ++k)
        if (row0 + r + k < rows && column0 + c < columns)
          packs[patch][k] = load_pack(x + (row0 + r + k) * columns + column0 + c);
      ++patch;
    });
    patch = 0;
    for_each_patch<T, in_word, width>([&](int r, int c) {
#pragma unroll
      for (int e = 0; e < width; ++e) {
        Bits bits = packs[patch][0][e];
#pragma unroll
        for (int k = 1; k < in_word; ++k)
          bits |= static_cast<Bits>(packs[patch][k][e]) << 8 * sizeof(T) * k;
        tile.word(c + e, r / in_word).bits = bits;
      }
      ++patch;
    });
  } else {
    for_each_patch<T, 1, 1>([&](int r, int c) {
      if (row0 + r < rows && column0 + c < columns)
        tile.element(c, r) = x[(row0 + r) * columns + column0 + c];
    });
  }
  __syncthreads();
  if (is_aligned(out) && rows % width == 0) {
    for_each_patch<T, 1, width>([&](int c, int r) {
      if (column0 + c >= columns || row0 + r >= rows) return;
      Pack<Bits> pack;
#pragma unroll
      for (int w = 0; w < Tile::words_in_pack; ++w) pack[w] = tile.word(c, r / in_word + w).bits;
      store_pack(reinterpret_cast<Bits*>(out + (column0 + c) * rows + row0 + r), pack);
    });
  } else {
    for_each_patch<T, 1, 1>([&](int c, int r) {
      if (column0 + c < columns && row0 + r < rows)
        out[(column0 + c) * rows + row0 + r] = tile.element(c, r);
    });
  }
}

template <class T>
void transpose_words(const Tensor& x, const Tensor& out) {
  const std::int64_t rows = x.size(-2), columns = x.size(-1);
  constexpr int side = TransposedTile<T>::side;
  const std::int64_t tiles =
      divide_up(rows, side) * divide_up(columns, side) * (x.numel() / (rows * columns));
  launch<transpose_kernel<T>>({.grid = blocks_for(tiles, 1), .block = transpose_threads},
                              queue_of(x).stream, rows, columns,
                              reinterpret_cast<const T*>(x.raw()), reinterpret_cast<T*>(out.raw()));
}

}  // namespace

void CudaBackend::cast(const Tensor& x, const Tensor& out) {
  const std::int64_t n = x.numel();
  if (n == 0) return;
  visit_any_floating("cast", x.dtype(), [&](auto from) {
    visit_any_floating("cast", out.dtype(), [&](auto to) {
      using From = OnDevice<decltype(from)>;
      using To = OnDevice<decltype(to)>;
      using Wider = std::conditional_t<(sizeof(To) > sizeof(From)), To, From>;
      launch<cast_kernel<To, From>>({.grid = map_blocks<2, Wider>(n), .block = map_threads},
                                    queue_of(x).stream, n, reinterpret_cast<To*>(out.raw()),
                                    reinterpret_cast<const From*>(x.raw()));
    });
  });
}

void CudaBackend::transpose(const Tensor& x, const Tensor& out) {
  if (x.numel() == 0) return;
  switch (size_of(x.dtype())) {
    case 1: return transpose_words<std::uint8_t>(x, out);
    case 2: return transpose_words<std::uint16_t>(x, out);
    case 4: return transpose_words<std::uint32_t>(x, out);
    default: return transpose_words<std::uint64_t>(x, out);
  }
}

}  // namespace lockstep::kernels
