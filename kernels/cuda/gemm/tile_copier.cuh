#pragma once
/// Asynchronous copies of tiles into shared memory, for rungs 8 to 10. A thread that starts such a
/// copy (PTX: cp.async) does not wait for it, and the data does not pass through its registers: the
/// block computes on one tile while the next ones are under way. For .cu files only.

#include <device_intrinsics.h>

#include <type_traits>

#include "lockstep/kernels/cuda/gemm/operand.cuh"

namespace lockstep::kernels::cuda {

/// How a tile lies in shared memory.
enum class TileOrder {
  depth_rows,  ///< tile[depth][outer]; transposed while it is copied, where need be
  as_stored,   ///< its rows are pieces of the operand's rows: tile[outer][depth] or the other way
  for_pairs,   ///< the same, of f32 that is read by pairs along the depth (rung 10)
};

/// One thread's part in copying, one after the other, the tiles of OUTER x DEPTH elements along the
/// depth of an operand. As it lies in memory a tile is some contiguous rows. A thread copies one
/// unit (16 bytes, or one element where that is impossible) of every STEP-th of these rows:
///
///              along ->
///   across   +----+----+----+----+
///     |      | t0 | t1 | t2 | t3 |         t: number of the thread; here, with 4 units per row and
///     v      | t4 | t5 | t6 | t7 |         8 threads, STEP is 2
///            | t0 | t1 | t2 | t3 |
///            | t4 | t5 | t6 | t7 |
///            +----+----+----+----+
///
/// Units beyond the ends of the operand arrive as zeros.
template <class T, int OUTER, int DEPTH, int THREADS, TileOrder ORDER>
class TileCopier {
  static constexpr int WIDE = 16 / static_cast<int>(sizeof(T));  // elements
  /// Rows in shared memory are longer than what they hold, so that threads meet in few banks. In
  /// depth_rows: when they are written (see `padding`; but quads must stay aligned, so that two
  /// threads do meet where DEPTH is 16). As stored: when they are read (see rungs 9 and 10).
  static constexpr int DEPTH_ROWS_PADDING = padding<T, DEPTH> < WIDE ? WIDE : padding<T, DEPTH>;
  static constexpr int PADDING_BY_OUTER = ORDER == TileOrder::for_pairs ? 2 * WIDE : WIDE;
  static constexpr int PADDING_BY_DEPTH = ORDER == TileOrder::for_pairs ? WIDE : 8;

 public:
  /// Elements from one row of the tile in shared memory to the next.
  template <bool DEPTH_CONTIGUOUS>
  static constexpr int ROW = ORDER == TileOrder::depth_rows ? OUTER + DEPTH_ROWS_PADDING
                             : DEPTH_CONTIGUOUS             ? DEPTH + PADDING_BY_OUTER
                                                            : OUTER + PADDING_BY_DEPTH;
  /// Elements that a tile takes in shared memory, whichever way its operand lies.
  static constexpr int SIZE_BY_DEPTH = DEPTH * ROW<false>, SIZE_BY_OUTER = OUTER * ROW<true>;
  static constexpr int SIZE = ORDER != TileOrder::depth_rows && SIZE_BY_OUTER > SIZE_BY_DEPTH
                                  ? SIZE_BY_OUTER
                                  : SIZE_BY_DEPTH;

  /// For tiles that begin at (outer, depth). `aligned` is x.aligned_rows().
  __device__ __forceinline__ TileCopier(const Operand<T>& x, std::int64_t outer, std::int64_t depth,
                                        bool aligned)
      : depth_contiguous_(x.depth_contiguous),
        wide_(aligned),
        outer_left_(within(x.outer - outer, OUTER)),
        pitch_(x.pitch()) {
    in_mode([&](auto mode) {
      along_ = static_cast<int>(threadIdx.x) % mode.PER_ROW * mode.UNIT;
      across_ = static_cast<int>(threadIdx.x) / mode.PER_ROW;
      source_ = mode.ALONG_DEPTH ? x.address(outer + across_, depth + along_)
                                 : x.address(outer + along_, depth + across_);
    });
  }

  /// Starts copying the next tile to `tile`. `depth_left`: how many depths there still are.
  __device__ __forceinline__ void start(T* tile, std::int64_t depth_left) {
    const int depths = within(depth_left, DEPTH);
    in_mode([&](auto mode) {
      const int across_left = (mode.ALONG_DEPTH ? outer_left_ : depths) - across_;
      const int exist = along_ < (mode.ALONG_DEPTH ? depths : outer_left_) ? across_left : 0;
      T* to = tile + along_ * mode.TO_ALONG + across_ * mode.TO_ACROSS;
      const T* from = source_;
#pragma unroll
      for (int i = 0; i < OUTER * DEPTH / mode.UNIT / THREADS; ++i) {
        copy<mode.UNIT>(to + i * mode.STEP * mode.TO_ACROSS, from, i * mode.STEP < exist);
        from += mode.STEP * pitch_;
      }
      source_ += mode.ALONG_DEPTH ? DEPTH : DEPTH * pitch_;
    });
  }

 private:
  /// What follows from the operand's contiguous dimension and from the size of a unit.
  template <bool DEPTH_CONTIGUOUS, int UNIT_>
  struct Mode {
    static constexpr bool ALONG_DEPTH = DEPTH_CONTIGUOUS;
    static constexpr int UNIT = UNIT_;
    static constexpr int PER_ROW = (DEPTH_CONTIGUOUS ? DEPTH : OUTER) / UNIT;
    static constexpr int STEP = THREADS / PER_ROW;
    static_assert(THREADS % PER_ROW == 0 && OUTER * DEPTH % (THREADS * UNIT) == 0);
    /// Elements in shared memory from a neighbour to the next, along and across.
    static constexpr bool TRANSPOSES = DEPTH_CONTIGUOUS && ORDER == TileOrder::depth_rows;
    static constexpr int TO_ALONG = TRANSPOSES ? ROW<DEPTH_CONTIGUOUS> : 1;
    static constexpr int TO_ACROSS = TRANSPOSES ? 1 : ROW<DEPTH_CONTIGUOUS>;
  };

  /// Calls f with the Mode of this operand. What transposes can only copy single elements.
  template <class F>
  __device__ __forceinline__ void in_mode(F&& f) const {
    if (depth_contiguous_) {
      if constexpr (ORDER != TileOrder::depth_rows)
        if (wide_) return f(Mode<true, WIDE>{});
      f(Mode<true, 1>{});
    } else if (wide_) {
      f(Mode<false, WIDE>{});
    } else {
      f(Mode<false, 1>{});
    }
  }

  template <int UNIT>
  static __device__ __forceinline__ void copy(T* to, const T* from, bool exists) {
    if constexpr (UNIT == WIDE)
      cp_async_16(to, from, exists);
    else if constexpr (sizeof(T) == 4)
      cp_async_4(to, from, exists);
    else  // the asynchronous copy does not know units of 2 bytes
      *to = exists ? *from : T{};
  }

  static __device__ __forceinline__ int within(std::int64_t length, int limit) {
    return static_cast<int>(length < limit ? length : limit);
  }

  bool depth_contiguous_, wide_;
  int outer_left_;
  std::int64_t pitch_;
  int along_ = 0, across_ = 0;
  const T* source_ = nullptr;
};

}  // namespace lockstep::kernels::cuda
