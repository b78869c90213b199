#pragma once
/// How sums leave the kernel of rungs 11 and 12: from the registers of a warp to c, added to c's
/// former values or through the epilogue.
///
/// No thread waits for memory where it need not. The bias is fetched before the products and has
/// come when they are done; matrices (c's former values, what has to be positive) are fetched one
/// patch ahead.

#include <utility>

#include "lockstep/kernels/cuda/gemm/hopper/tile.cuh"
#include "lockstep/kernels/cuda/gemm/operand.cuh"

namespace lockstep::kernels::cuda {
namespace {

/// The bias of a tile's columns in the registers of a warp: lane l has columns l, l + 32, ...
template <class Tile>
struct Bias {
  float values[Tile::COLUMNS / 32] = {};

  template <class C>
  __device__ void fetch(const Output<C>& out, int column) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < Tile::COLUMNS / 32; ++i)
      if (column + 32 * i + lane < out.extent.n)
        values[i] = out.problem.bias[column + 32 * i + lane];
  }

  /// To shared memory, where all lanes find all columns.
  __device__ void spread(float (&columns)[Tile::COLUMNS]) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < Tile::COLUMNS / 32; ++i) columns[32 * i + lane] = values[i];
  }
};

/// The way of a warp's 16 rows of a tile, from (row, column) on, in patches of 16 x 128 bytes: from
/// the accumulators, where each thread has pairs of columns, through shared memory, to c, 16 bytes
/// per thread and 128 contiguous ones per row. The sum is rounded once, after all additions.
template <class Tile, class C>
struct Writer {
  using Pair = typename Element<C>::Pair;
  static constexpr int CHUNK = 16 / sizeof(C), CHUNKS = 4;
  static constexpr int WIDTH = Patch<C>::COLUMNS, GROUPS = WIDTH / 8;

  Patch<C>& patch;
  const float (&bias)[Tile::COLUMNS];
  const Output<C>& out;
  int row, column;
  const C* read;          ///< the matrix of c's shape that is read, or null
  uint4 fetched[CHUNKS];  ///< what is read of it for the next patch
  int lane = threadIdx.x % 32;

  /// use(i-th 16 bytes of this thread, the same in the patch, the same in `matrix`, or null beyond
  /// its end): 8 threads per row of 128 bytes, 4 rows at a time. `first`: the patch's first column.
  template <class Matrix, class Use>
  __device__ __forceinline__ void each_chunk(Matrix* matrix, int first, Use&& use) {
    using Chunk = std::conditional_t<std::is_const_v<Matrix>, const uint4, uint4>;
    const int at_column = column + first + lane % 8 * CHUNK;
#pragma unroll
    for (int i = 0; i < CHUNKS; ++i) {
      const int r = lane / 8 + 4 * i;
      use(i, *reinterpret_cast<uint4*>(&patch.rows[r][lane % 8 * CHUNK]),
          row + r < out.extent.m && at_column < out.extent.n
              ? reinterpret_cast<Chunk*>(matrix + std::int64_t{row + r} * out.extent.n + at_column)
              : nullptr);
    }
  }

  /// use(a pair of the patch, its column in the tile, and the two sums that belong there).
  template <int first, class Use>
  __device__ __forceinline__ void each_pair(hw::Accumulators<Tile::COLUMNS>& sum, Use&& use) {
#pragma unroll
    for (int j = 0; j < GROUPS; ++j)
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        const int at = 8 * j + 2 * (lane % 4);
        use(*reinterpret_cast<Pair*>(&patch.rows[lane / 4 + 8 * upper][at]), first + at,
            sum[first / 8 + j][2 * upper], sum[first / 8 + j][2 * upper + 1]);
      }
  }

  __device__ __forceinline__ void fetch(int first) {
    each_chunk(read, first,
               [this](int i, uint4&, const uint4* from) { fetched[i] = from ? *from : uint4{}; });
  }

  /// use(two sums, what the patch holds there) after what was fetched has come there, and the next
  /// is on its way.
  template <int first, class Use>
  __device__ __forceinline__ void with_fetched(hw::Accumulators<Tile::COLUMNS>& sum, Use&& use) {
    each_chunk(read, first, [this](int i, uint4& staged, const uint4*) { staged = fetched[i]; });
    __syncwarp();
    if (first + WIDTH < Tile::COLUMNS) fetch(first + WIDTH);
    each_pair<first>(sum, [&](const Pair& staged, int, float& left, float& right) {
      use(left, right, Element<C>::floats(staged));
    });
  }

  template <int first>
  __device__ __forceinline__ void write_patch(hw::Accumulators<Tile::COLUMNS>& sum) {
    __syncwarp();  // the patch before this one has been read
    if (out.problem.accumulate)
      with_fetched<first>(sum, [](float& left, float& right, float2 former) {
        left += former.x, right += former.y;
      });
    if (out.problem.bias != nullptr)
      each_pair<first>(sum, [this](const Pair&, int at, float& left, float& right) {
        const float2 both = *reinterpret_cast<const float2*>(&bias[at]);
        left += both.x, right += both.y;
      });
    if (out.problem.relu)
      each_pair<first>(sum, [](const Pair&, int, float& left, float& right) {
        left = where_positive(left, left), right = where_positive(right, right);
      });
    if (out.problem.positive != nullptr)
      with_fetched<first>(sum, [](float& left, float& right, float2 positive) {
        left = where_positive(positive.x, left), right = where_positive(positive.y, right);
      });
    each_pair<first>(sum, [](Pair& staged, int, float left, float right) {
      staged = Element<C>::pair(make_float2(left, right));
    });
    __syncwarp();
    each_chunk(out.problem.c, first, [](int, const uint4& staged, uint4* to) {
      if (to) *to = staged;
    });
  }

  /// Sums must stay in registers: the number of a patch is a constant wherever one is indexed.
  template <int... patches>
  __device__ __forceinline__ void write(hw::Accumulators<Tile::COLUMNS>& sum,
                                        std::integer_sequence<int, patches...>) {
    if (read != nullptr) fetch(0);
    (write_patch<patches * WIDTH>(sum), ...);
  }
};

template <class Tile, class C>
__device__ void store(hw::Accumulators<Tile::COLUMNS>& sum, Patch<C>& patch,
                      const float (&bias)[Tile::COLUMNS], const Output<C>& out, int row,
                      int column) {
  const C* const read = out.problem.accumulate ? out.problem.c : out.problem.positive;
  Writer<Tile, C> writer{patch, bias, out, row, column, read, {}};
  writer.write(sum, std::make_integer_sequence<int, Tile::COLUMNS / Patch<C>::COLUMNS>{});
}

}  // namespace
}  // namespace lockstep::kernels::cuda
