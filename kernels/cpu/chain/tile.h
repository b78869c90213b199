#pragma once
/// A tile of C: all its elements are computed in registers, each by one chain of fused
/// multiply-adds over ascending k.
///
/// What a tile reads of op(A) and op(B) is called by its part in the tile: the factor of the
/// *rows*, whose elements are broadcast, and the factor of the *columns*, read in vectors.

#include <cstdint>
#include <span>

#include "lockstep/kernels/cpu/chain/vectors.h"

namespace lockstep::kernels::chain {

/// What a chain starts from.
enum class Start { zero, c, bias };

/// Of a packed factor of rows whose rows lie along k: from one row to the next. Not a power of two,
/// so that the rows of a tile do not fight for the same lines of the first-level cache.
inline constexpr std::int64_t k_block = 512, row_pitch = k_block + 16;

/// The elements of a cache line.
template <class T>
inline constexpr std::int64_t line = 64 / sizeof(T);

template <class T>
struct Tile {
  const T* rows;  ///< for row y and k = p: [y + p rows_step], or [y row_pitch + p]
  std::int64_t rows_step;
  const T* columns;  ///< for column x and k = p: [x + p columns_step]; full vectors
  std::int64_t columns_step;
  /// Where the blocks begin, and k. More than one: each block's chain starts at +0, and a balanced
  /// tree over the blocks adds them up.
  std::span<const std::int64_t> blocks;
  T* c;  ///< row y, column x: [y c_step + x], or with `transposed` [y + x c_step]
  std::int64_t c_step;
  bool transposed;
  int width;  ///< columns of C; those of the last vector beyond it are left alone
  Start start;
  bool add_c;      ///< c := c + result
  const T* ahead;  ///< [p ahead_step] is prefetched at k = p: of what is packed next
  std::int64_t ahead_step;
  const T* bias;  ///< for Start::bias: of the columns, with `transposed` of the rows
};

/// A tile of `rows` rows and `vectors` vectors in each row.
template <class V, int rows, int vectors>
struct Registers {
  using T = typename V::Element;
  using Vector = typename V::Vector;
  static constexpr int width = V::width;
  Vector at[rows][vectors];

  template <class F>
  LOCKSTEP_INLINE void each(F&& f) {
    unroll<rows>([&](auto y) __attribute__((always_inline)) {
      unroll<vectors>([&](auto x) __attribute__((always_inline)) { f(at[y][x], y, x); });
    });
  }
  LOCKSTEP_INLINE void clear() {
    each([](Vector & v, auto, auto) __attribute__((always_inline)) { v = V::zero(); });
  }
  LOCKSTEP_INLINE void push(T* to) {
    each([&](Vector & v, auto y, auto x)
             __attribute__((always_inline)) { V::store(to + (y * vectors + x) * width, v); });
  }
  /// x + this, where x was pushed.
  LOCKSTEP_INLINE void add(const T* from) {
    each([&](Vector & v, auto y, auto x) __attribute__((always_inline)) {
      v = V::add(V::load(from + (y * vectors + x) * width), v);
    });
  }

  /// The chains, over the values of k from `begin` to `end`.
  template <bool along_k>
  LOCKSTEP_INLINE void multiply(const Tile<T>& t, std::int64_t begin, std::int64_t end) {
    const std::int64_t rows_step = along_k ? 1 : t.rows_step;
    constexpr std::int64_t pitch = along_k ? row_pitch : 1;
    const T* a = t.rows + begin * rows_step;
    const T* b = t.columns + begin * t.columns_step;
    const T* ahead = t.ahead + begin * t.ahead_step;
    for (std::int64_t p = begin; p < end;
         ++p, a += rows_step, b += t.columns_step, ahead += t.ahead_step) {
      __builtin_prefetch(ahead, 0, 2);
      __builtin_prefetch(ahead + line<T>, 0, 2);
      Vector of_columns[vectors];
      unroll<vectors>([&](auto x) __attribute__((always_inline)) {
        of_columns[x] = V::load(b + x * width);
      });
      unroll<rows>([&](auto y) __attribute__((always_inline)) {
        const Vector of_row = V::broadcast(a + y * pitch);
        unroll<vectors>([&](auto x) __attribute__((always_inline)) {
          at[y][x] = V::multiply_add(of_row, of_columns[x], at[y][x]);
        });
      });
    }
  }

  /// Columns of vector x.
  static LOCKSTEP_INLINE int columns_of(const Tile<T>& t, int x) {
    const int rest = t.width - x * width;
    return rest < width ? rest : width;
  }
  /// Calls f(vector, first element in memory, elements): rows of C as they lie in memory.
  template <class F>
  LOCKSTEP_INLINE void each_in_c(const Tile<T>& t, F&& f) {
    each([&](Vector & v, auto y, auto x) __attribute__((always_inline)) {
      f(v, t.c + y * t.c_step + x * width, columns_of(t, x));
    });
  }
  /// The same of the tile transposed, square by square. `loads`: f sets what it is given.
  template <bool loads, class F>
  LOCKSTEP_INLINE void each_in_transposed_c(const Tile<T>& t, F&& f) {
    constexpr int squares = (rows + width - 1) / width;
    unroll<vectors>([&](auto x) __attribute__((always_inline)) {
      unroll<squares>([&](auto square) __attribute__((always_inline)) {
        constexpr int first = square * width, count = rows - first < width ? rows - first : width;
        Vector v[width];
        unroll<width>([&](auto i) __attribute__((always_inline)) {
          if constexpr (!loads && i < count)
            v[i] = at[first + i][x];
          else
            v[i] = V::zero();
        });
        if constexpr (!loads) V::transpose(v);
        T* const to = t.c + x * width * t.c_step + first;
        const int columns = columns_of(t, x);
        unroll<width>([&](auto i) __attribute__((always_inline)) {
          if (i < columns) f(v[i], to + i * t.c_step, count);
        });
        if constexpr (loads) {
          V::transpose(v);
          unroll<count>([&](auto i) __attribute__((always_inline)) { at[first + i][x] = v[i]; });
        }
      });
    });
  }
  LOCKSTEP_INLINE void load(const Tile<T>& t) {
    const auto f = [](Vector & v, const T* from, int n) __attribute__((always_inline)) {
      v = V::load_first(from, n);
    };
    t.transposed ? each_in_transposed_c<true>(t, f) : each_in_c(t, f);
  }
  LOCKSTEP_INLINE void store(const Tile<T>& t) {
    const auto f = [](const Vector& v, T* to, int n) __attribute__((always_inline)) {
      V::store_first(to, n, v);
    };
    t.transposed ? each_in_transposed_c<false>(t, f) : each_in_c(t, f);
  }
  LOCKSTEP_INLINE void begin(const Tile<T>& t) {
    if (t.start == Start::c) return load(t);
    if (t.start == Start::zero) return clear();
    each([&](Vector & v, auto y, auto x) __attribute__((always_inline)) {
      v = t.transposed ? V::broadcast(t.bias + y)
                       : V::load_first(t.bias + x * width, columns_of(t, x));
    });
  }
};

/// C's part, which is written when all is computed.
template <class T>
void prefetch_c(const Tile<T>& t, int rows) {
  const std::int64_t pieces = t.transposed ? t.width : rows;
  const std::int64_t bytes = static_cast<std::int64_t>(sizeof(T)) * (t.transposed ? rows : t.width);
  for (std::int64_t i = 0; i < pieces; ++i) {
    const char* const piece = reinterpret_cast<const char*>(t.c + i * t.c_step);
    for (std::int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(piece + at, 1);
    __builtin_prefetch(piece + bytes - 1, 1);
  }
}

inline constexpr int most_levels = 6;  // of the tree: max_blocks

/// Computes the tile. Partial results wait on a stack: after block i, those pairs are added that
/// are complete, as a binary counter carries.
template <class V, bool along_k, int rows, int vectors>
void compute(const Tile<typename V::Element>& t) {
  constexpr int elements = rows * vectors * V::width;
  Registers<V, rows, vectors> sum;
  prefetch_c(t, rows);
  sum.begin(t);
  const std::size_t blocks = t.blocks.size() - 1;
  alignas(64) typename V::Element stack[most_levels * elements];
  typename V::Element* top = stack;
  for (std::size_t block = 0;;) {
    sum.template multiply<along_k>(t, t.blocks[block], t.blocks[block + 1]);
    for (std::size_t carry = block; carry & 1; carry >>= 1) sum.add(top -= elements);
    if (++block == blocks) break;
    sum.push(top);
    top += elements;
    sum.clear();
  }
  if (t.add_c) {
    sum.push(stack);
    sum.load(t);
    sum.add(stack);  // addition commutes
  }
  sum.store(t);
}

}  // namespace lockstep::kernels::chain
