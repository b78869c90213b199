#pragma once
/// C (+)= op(A) op(B) + bias, tile by tile. Who is packed, and in which order the tiles come, depends on the shape alone and changes no bit: a chain that is cut into blocks of k
/// goes on from where C keeps it.

#include <algorithm>
#include <array>

#include "lockstep/kernels/cpu/chain/pack.h"
#include "lockstep/kernels/cpu/chain/tile.h"

namespace lockstep::kernels::chain {

/// A product as its tiles see it.
struct Product {
  std::int64_t m, n, k;  ///< rows, columns
  Factor rows, columns;
  float* c;
  std::int64_t c_step;
  bool transposed;  ///< C lies as (n, m)
  bool accumulate;
  const float* bias;
  std::span<const std::int64_t> lanes;  ///< empty: none
};

using Compute = void (*)(const Tile&);

/// The functions for tiles of 1 .. V::rows rows and 1 .. V::vectors vectors.
template <class V, bool along_k>
inline constexpr auto functions = []<int... i>(std::integer_sequence<int, i...>) {
  return std::array<Compute, sizeof...(i)>{
      compute<V, along_k, i / V::vectors + 1, i % V::vectors + 1>...};
}
(std::make_integer_sequence<int, V::rows * V::vectors>{});

inline std::int64_t pieces(std::int64_t n, std::int64_t largest) {
  return (n + largest - 1) / largest;
}

/// Piece i of `count` pieces of n that are as equal as can be.
inline Range piece(std::int64_t n, std::int64_t count, std::int64_t i) {
  return {n * i / count, n * (i + 1) / count};
}

template <class V>
class Tiles {
 public:
  static constexpr std::int64_t panel = V::width * V::vectors;
  static constexpr std::int64_t resident_floats = 1 << 17;  // half of a second-level cache of 1 MiB

  explicit Tiles(const Product& p) : p_(p) {}

  void run() {
    // Of k = 0, too, there is one block, which writes where the chains start.
    const std::int64_t k_blocks =
        p_.lanes.empty() ? std::max<std::int64_t>(pieces(p_.k, k_block), 1) : 1;
    const std::int64_t k_floats = std::max<std::int64_t>(pieces(p_.k, k_blocks), 1);
    const bool rows_stay = p_.m < p_.n;
    const std::int64_t count = rows_stay ? p_.m : p_.n;
    const std::int64_t unit = rows_stay ? V::rows : panel;
    const std::int64_t most = std::max<std::int64_t>(resident_floats / k_floats / unit, 1) * unit;
    const std::int64_t blocks = pieces(count, most);
    const std::int64_t block = pieces(pieces(count, blocks), unit) * unit;
    for (std::int64_t begin = 0; begin < count; begin += block) {
      const Range here{begin, std::min(count, begin + block)};
      for (std::int64_t i = 0; i < k_blocks; ++i)
        rows_stay ? rows_stay_block(here, piece(p_.k, k_blocks, i))
                  : columns_stay_block(here, piece(p_.k, k_blocks, i));
    }
  }

 private:
  // Rows [begin, end) are packed for all panels of columns; each panel just before its use.
  void rows_stay_block(Range rows, Range k) {
    const std::int64_t tiles = pieces(rows.size(), V::rows);
    float* const packed_rows = scratch<0>(row_floats(rows.size(), k.size()));
    float* const packed_columns = scratch<1>(panel * k.size());
    for (std::int64_t i = 0; i < tiles; ++i) {
      const Range tile = piece(rows.size(), tiles, i);
      pack_rows<V>(p_.rows, {rows.begin + tile.begin, rows.begin + tile.end}, k,
                   packed_rows + row_floats(tile.begin, k.size()));
    }
    for (std::int64_t j = 0; j < p_.n; j += panel) {
      const Range columns{j, std::min(p_.n, j + panel)};
      pack_columns<V>(p_.columns, columns, k, packed_columns);
      for (std::int64_t i = 0; i < tiles; ++i) {
        const Range tile = piece(rows.size(), tiles, i);
        compute_tile({rows.begin + tile.begin, rows.begin + tile.end}, columns, k,
                     packed_rows + row_floats(tile.begin, k.size()), packed_columns);
      }
    }
  }

  // Columns [begin, end) are packed for all tiles of rows; each tile's rows just before their use.
  void columns_stay_block(Range columns, Range k) {
    const std::int64_t tiles = pieces(p_.m, V::rows);
    float* const packed_columns =
        scratch<0>(pieces(columns.size(), V::width) * V::width * k.size());
    float* const packed_rows = scratch<1>(row_floats(V::rows, k.size()));
    for (std::int64_t j = columns.begin; j < columns.end; j += panel)
      pack_columns<V>(p_.columns, {j, std::min(columns.end, j + panel)}, k,
                      packed_columns + (j - columns.begin) * k.size());
    for (std::int64_t i = 0; i < tiles; ++i) {
      const Range rows = piece(p_.m, tiles, i);
      pack_rows<V>(p_.rows, rows, k, packed_rows);
      for (std::int64_t j = columns.begin; j < columns.end; j += panel)
        compute_tile(rows, {j, std::min(columns.end, j + panel)}, k, packed_rows,
                     packed_columns + (j - columns.begin) * k.size());
    }
  }

  std::int64_t row_floats(std::int64_t rows, std::int64_t k) const {
    return rows * (p_.rows.along_k ? row_pitch : k);
  }

  void compute_tile(Range rows, Range columns, Range k, const float* packed_rows,
                    const float* packed_columns) const {
    const std::int64_t vectors = pieces(columns.size(), V::width);
    const std::int64_t whole[] = {0, k.size()};
    const bool first = k.begin == 0, by_lanes = !p_.lanes.empty();
    const Start start = !first || (p_.accumulate && !by_lanes) ? Start::c
                        : p_.bias != nullptr                   ? Start::bias
                                                               : Start::zero;
    const std::int64_t bias_at = p_.transposed ? rows.begin : columns.begin;
    const Tile tile{.rows = packed_rows,
                    .rows_step = rows.size(),
                    .columns = packed_columns,
                    .columns_step = vectors * V::width,
                    .lanes = by_lanes ? p_.lanes : std::span<const std::int64_t>(whole),
                    .c = p_.c + (p_.transposed ? rows.begin + columns.begin * p_.c_step
                                               : rows.begin * p_.c_step + columns.begin),
                    .c_step = p_.c_step,
                    .transposed = p_.transposed,
                    .width = static_cast<int>(columns.size()),
                    .start = start,
                    .add_c = by_lanes && p_.accumulate,
                    .bias = p_.bias == nullptr ? nullptr : p_.bias + bias_at};
    const auto index = static_cast<std::size_t>((rows.size() - 1) * V::vectors + vectors - 1);
    (p_.rows.along_k ? functions<V, true> : functions<V, false>)[index](tile);
  }

  const Product p_;
};

}  // namespace lockstep::kernels::chain
