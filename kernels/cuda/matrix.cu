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
//     shared stores 2.00 (1.00), DRAM 1.00 of the fewest
//   transpose_u8 256x256: loads 16.00 (100 %), stores 16.00 (100 %), shared loads 1.00 (1.00),
//     shared stores 4.00 (1.00), DRAM 1.00 of the fewest
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
// of the result, so that both sides see runs of at least 128 bytes.

constexpr int transpose_threads = 256;
constexpr int segment_packs = 8;  // a warp reads or writes 4 rows of 128 bytes at a time

/// Elements along the tile's side: a multiple of 128 bytes.
template <class T>
constexpr int tile_side = sizeof(T) == 1   ? 128
                          : sizeof(T) == 8 ? 32
                                           : 64;

/// Calls f(row, column) for the tile's packs of `width` elements that this thread moves.
template <class T, int width, class F>
__device__ __forceinline__ void for_each_pack(F f) {
  constexpr int side = tile_side<T>;
  constexpr int in_segment = width == 1 ? side : segment_packs;
  // More single elements would not fit into registers. (The simulator's compiler unrolls nothing.)
  [[maybe_unused]] constexpr int at_once = width == 1 ? 8 : 64;
#pragma unroll at_once
  for (int pack = 0; pack < side * side / width; pack += transpose_threads) {
    const int p = pack + static_cast<int>(threadIdx.x);
    const int segment = p / (in_segment * side);
    f(p / in_segment % side, (segment * in_segment + p % in_segment) * width);
  }
}

/// x (..., rows, columns) -> out (..., columns, rows), T an unsigned integer of the elements' size.
/// 16-byte loads where rows begin at multiples of 16 bytes, stores likewise.
template <class T>
__global__ void __launch_bounds__(transpose_threads, 1)
    transpose_kernel(std::int64_t rows, std::int64_t columns, const T* __restrict__ all_x,
                     T* __restrict__ all_out) {
  constexpr int side = tile_side<T>, width = pack_width<T>;
  // A row of the tile is one word longer, so that its columns lie in different memory banks.
  constexpr int pitch = side + (sizeof(T) < 4 ? 4 / static_cast<int>(sizeof(T)) : 1);
  __shared__ T tile[side][pitch];  // transposed: (column of x, row of x)
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
    constexpr int loads = side * side / width / transpose_threads;
    Pack<T> packs[loads];  // all under way before the first is stored
    int load = 0;
    for_each_pack<T, width>([&](int r, int c) {
      if (row0 + r < rows && column0 + c < columns)
        packs[load] = load_pack(x + (row0 + r) * columns + column0 + c);
      ++load;
    });
    load = 0;
    for_each_pack<T, width>([&](int r, int c) {
#pragma unroll
      for (int e = 0; e < width; ++e) tile[c + e][r] = packs[load][e];
      ++load;
    });
  } else {
    for_each_pack<T, 1>([&](int r, int c) {
      if (row0 + r < rows && column0 + c < columns)
        tile[c][r] = x[(row0 + r) * columns + column0 + c];
    });
  }
  __syncthreads();
  if (is_aligned(out) && rows % width == 0) {
    for_each_pack<T, width>([&](int c, int r) {
      if (column0 + c >= columns || row0 + r >= rows) return;
      Pack<T> pack;
#pragma unroll
      for (int e = 0; e < width; ++e) pack[e] = tile[c][r + e];
      store_pack(out + (column0 + c) * rows + row0 + r, pack);
    });
  } else {
    for_each_pack<T, 1>([&](int c, int r) {
      if (column0 + c < columns && row0 + r < rows)
        out[(column0 + c) * rows + row0 + r] = tile[c][r];
    });
  }
}

template <class T>
void transpose_words(const Tensor& x, const Tensor& out) {
  const std::int64_t rows = x.size(-2), columns = x.size(-1);
  const std::int64_t tiles = divide_up(rows, tile_side<T>) * divide_up(columns, tile_side<T>) *
                             (x.numel() / (rows * columns));
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
