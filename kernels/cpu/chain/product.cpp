// C (+)= op(A) op(B) + bias, tile by tile. Which factor is packed, and in which order the tiles
// come, is a function of the shape and changes no bit: a chain that is cut into blocks of k goes on
// from the value that C keeps.

#include <algorithm>
#include <array>

#include "lockstep/kernels/cpu/chain/multiply.h"
#include "lockstep/kernels/cpu/chain/pack.h"
#include "lockstep/kernels/cpu/chain/tile.h"

namespace lockstep::kernels {
namespace chain {
namespace {

/// A product as its tiles see it.
template <class T>
struct Product {
  std::int64_t m, n, k;  ///< rows, columns
  Factor<T> rows, columns;
  T* c;
  std::int64_t c_step;
  bool transposed;  ///< C lies as (n, m)
  bool accumulate;
  const T* bias;
  std::span<const std::int64_t> blocks;  ///< empty: none
};

template <class T>
using Compute = void (*)(const Tile<T>&);

/// The functions for tiles of 1 .. V::rows rows and 1 .. V::vectors vectors.
template <class V, bool along_k>
constexpr auto functions = []<int... i>(std::integer_sequence<int, i...>) {
  return std::array<Compute<typename V::Element>, sizeof...(i)>{
      compute<V, along_k, i / V::vectors + 1, i % V::vectors + 1>...};
}
(std::make_integer_sequence<int, V::rows * V::vectors>{});

std::int64_t pieces(std::int64_t n, std::int64_t largest) { return (n + largest - 1) / largest; }

/// Piece i of `count` pieces of n that are as equal as can be.
Range piece(std::int64_t n, std::int64_t count, std::int64_t i) {
  return {n * i / count, n * (i + 1) / count};
}

/// [0], [step], ...
template <class T>
struct Strided {
  const T* data;
  std::int64_t step;
};

template <class V>
class Tiles {
  using T = typename V::Element;

 public:
  explicit Tiles(const Product<T>& p) : p_(p) {}

  void run() {
    // Of k = 0, too, there is one block, which writes where the chains start.
    const std::int64_t k_blocks =
        p_.blocks.empty() ? std::max<std::int64_t>(pieces(p_.k, k_block), 1) : 1;
    const std::int64_t k_most = std::max<std::int64_t>(pieces(p_.k, k_blocks), 1);
    const bool columns_stay = keep_columns();
    const std::int64_t count = columns_stay ? p_.n : p_.m;
    const std::int64_t unit = columns_stay ? panel : V::rows;
    const std::int64_t most = std::max<std::int64_t>(resident / k_most / unit, 1) * unit;
    const std::int64_t block = pieces(pieces(count, pieces(count, most)), unit) * unit;
    for (std::int64_t begin = 0; begin < count; begin += block) {
      const Range here{begin, std::min(count, begin + block)};
      for (std::int64_t i = 0; i < k_blocks; ++i) {
        const Range k = piece(p_.k, k_blocks, i);
        columns_stay ? columns_stay_block(here, k) : rows_stay_block(here, k);
      }
    }
  }

 private:
  static constexpr std::int64_t panel = V::width * V::vectors, line = chain::line<T>;
  // Half of a second-level cache of 1 MiB.
  static constexpr std::int64_t resident = (std::int64_t{1} << 19) / sizeof(T);
  static constexpr std::int64_t few_uses = 10, few_elements = resident;  // larger: long strides

  // The factor that stays is read before anything is computed: better the smaller one. But if
  // the columns stay, C is written along its rows, which matters if it is large.
  bool keep_columns() const {
    return p_.n <= p_.m || p_.m <= V::rows ||
           (!p_.transposed && 2 * (p_.n - p_.m) * p_.k <= p_.m * p_.n);
  }

  // A small factor that few tiles read is read where it lies, if it lies as tiles need it.
  static bool in_place(const Factor<T>& f, std::int64_t elements, std::int64_t uses) {
    return !f.along_k && uses <= few_uses && elements <= few_elements;
  }

  // Rows [begin, end) are packed for all panels of columns; each panel just before its use.
  void rows_stay_block(Range rows, Range k) {
    const std::int64_t tiles = pieces(rows.size(), V::rows);
    const auto tile = [&](std::int64_t i) {
      const Range part = piece(rows.size(), tiles, i);
      return Range{rows.begin + part.begin, rows.begin + part.end};
    };
    const bool lie = in_place(p_.rows, p_.m * k.size(), pieces(p_.n, panel));
    T* const packed_rows = scratch<T, 0>(row_elements(rows.size(), k.size()));
    T* const packed_columns = scratch<T, 1>(panel * k.size());
    const auto packed = [&](Range part) {
      return packed_rows + row_elements(part.begin - rows.begin, k.size());
    };
    for (std::int64_t i = 0; i < tiles && !lie; ++i)
      pack_rows<V>(p_.rows, tile(i), k, packed(tile(i)));
    for (std::int64_t j = 0; j < p_.n; j += panel) {
      const Range columns{j, std::min(p_.n, j + panel)}, next{j + panel, p_.n};
      const bool full = columns.size() % V::width == 0;
      T* const panel_at =
          full && in_place(p_.columns, p_.n * k.size(), tiles) ? nullptr : packed_columns;
      if (panel_at != nullptr) pack_columns<V>(p_.columns, columns, k, panel_at);
      for (std::int64_t i = 0; i < tiles; ++i)
        compute_tile(tile(i), columns, k, lie ? nullptr : packed(tile(i)), panel_at,
                     ahead(p_.columns, next, panel, k, i));
    }
  }

  // Columns [begin, end) are packed for all tiles of rows; each tile's rows just before their use.
  void columns_stay_block(Range columns, Range k) {
    const std::int64_t tiles = pieces(p_.m, V::rows), panels = pieces(columns.size(), panel);
    const bool lie = in_place(p_.columns, p_.n * k.size(), tiles) && columns.size() % V::width == 0;
    T* const packed_columns = scratch<T, 0>(padded<V>(columns.size()) * k.size());
    T* const packed_rows = scratch<T, 1>(row_elements(V::rows, k.size()));
    const auto part = [&](std::int64_t j) {
      return Range{columns.begin + j * panel,
                   std::min(columns.end, columns.begin + (j + 1) * panel)};
    };
    const auto packed = [&](std::int64_t j) { return packed_columns + j * panel * k.size(); };
    if (!lie) pack_columns<V>(p_.columns, columns, k, packed_columns);
    for (std::int64_t i = 0; i < tiles; ++i) {
      const Range rows = piece(p_.m, tiles, i);
      T* const rows_at = in_place(p_.rows, p_.m * k.size(), panels) ? nullptr : packed_rows;
      if (rows_at != nullptr) pack_rows<V>(p_.rows, rows, k, rows_at);
      for (std::int64_t j = 0; j < panels; ++j)
        compute_tile(rows, part(j), k, rows_at, lie ? nullptr : packed(j),
                     lie && rows.end == p_.m
                         ? ahead(p_.columns, {part(j).end, columns.end}, panel, k, 0)
                         : ahead(p_.rows, {rows.end, p_.m}, V::rows, k, j));
    }
  }

  std::int64_t row_elements(std::int64_t rows, std::int64_t k) const {
    return rows * (p_.rows.along_k ? row_pitch : k);
  }

  /// What the i-th tile prefetches of the `most` rows or columns that are needed next: two cache
  /// lines for each k. What lies along k is read in long runs, which the processor foresees.
  static Strided<T> ahead(const Factor<T>& f, Range next, std::int64_t most, Range k,
                          std::int64_t i) {
    if (f.along_k || next.size() <= 0 || 2 * i * line > most) return {f.data, 0};
    const std::int64_t at = std::min(next.begin + 2 * i * line, next.end - 1);
    return {f.data + k.begin * f.stride + at, f.stride};
  }

  /// What is not packed is null: it is read where it lies.
  void compute_tile(Range rows, Range columns, Range k, const T* packed_rows,
                    const T* packed_columns, Strided<T> ahead) const {
    const std::int64_t vectors = pieces(columns.size(), V::width);
    const auto part = [&](const Factor<T>& f, const T* packed, std::int64_t step, Range range) {
      return packed != nullptr ? Strided<T>{packed, step}
                               : Strided<T>{f.data + k.begin * f.stride + range.begin, f.stride};
    };
    const Strided<T> a = part(p_.rows, packed_rows, rows.size(), rows);
    const Strided<T> b = part(p_.columns, packed_columns, vectors * V::width, columns);
    const std::int64_t whole[] = {0, k.size()};
    const bool by_blocks = !p_.blocks.empty();
    const Start start = k.begin > 0 || (p_.accumulate && !by_blocks) ? Start::c
                        : p_.bias != nullptr                         ? Start::bias
                                                                     : Start::zero;
    const std::int64_t c_at = p_.transposed ? rows.begin + columns.begin * p_.c_step
                                            : rows.begin * p_.c_step + columns.begin;
    const Tile<T> tile{.rows = a.data,
                       .rows_step = a.step,
                       .columns = b.data,
                       .columns_step = b.step,
                       .blocks = by_blocks ? p_.blocks : std::span<const std::int64_t>(whole),
                       .c = p_.c + c_at,
                       .c_step = p_.c_step,
                       .transposed = p_.transposed,
                       .width = static_cast<int>(columns.size()),
                       .start = start,
                       .add_c = by_blocks && p_.accumulate,
                       .ahead = ahead.data,
                       .ahead_step = ahead.step,
                       .bias = p_.bias == nullptr
                                   ? nullptr
                                   : p_.bias + (p_.transposed ? rows.begin : columns.begin)};
    const auto index = static_cast<std::size_t>((rows.size() - 1) * V::vectors + vectors - 1);
    (p_.rows.along_k ? functions<V, true> : functions<V, false>)[index](tile);
  }

  const Product<T> p_;
};

/// Whether the tiles' columns are C's rows: then the vectors lie across C's rows, and tiles are
/// transposed as they are written. A factor that lies along k is transposed to be read in vectors:
/// the order that transposes the smaller factor wins. Costs are in thirds of a multiply-add of
/// vectors.
template <class V>
bool across_rows(const GemmProblem<typename V::Element>& p) {
  const auto vectors = [](std::int64_t n) { return pieces(n, V::width); };
  const std::int64_t along_rows = 3 * p.m * vectors(p.n) * p.k + (p.transpose_b ? p.n * p.k : 0);
  const std::int64_t across =
      3 * p.n * vectors(p.m) * p.k + (p.transpose_a ? 0 : p.m * p.k) + 2 * p.m * p.n;
  return across < along_rows;
}

}  // namespace

template <class V>
void multiply(const GemmProblem<typename V::Element>& p, std::span<const std::int64_t> blocks) {
  if (p.m == 0 || p.n == 0) return;
  using Factor = Factor<typename V::Element>;
  const Factor a{p.a, p.transpose_a ? p.m : p.k, !p.transpose_a};
  const Factor b{p.b, p.transpose_b ? p.k : p.n, p.transpose_b};
  Product<typename V::Element> product{p.m, p.n,   p.k,          a,      b,     p.c,
                                       p.n, false, p.accumulate, p.bias, blocks};
  if (blocks.empty() && across_rows<V>(p)) {
    std::swap(product.m, product.n);
    std::swap(product.rows, product.columns);
    product.transposed = true;
  }
  Tiles<V>(product).run();
}

template void multiply<Scalar<float>>(const GemmProblem<float>&, std::span<const std::int64_t>);
template void multiply<Scalar<double>>(const GemmProblem<double>&, std::span<const std::int64_t>);
#ifdef LOCKSTEP_CHAIN_AVX2
template void multiply<Avx2<float>>(const GemmProblem<float>&, std::span<const std::int64_t>);
template void multiply<Avx2<double>>(const GemmProblem<double>&, std::span<const std::int64_t>);
#endif
#ifdef LOCKSTEP_CHAIN_AVX512
template void multiply<Avx512<float>>(const GemmProblem<float>&, std::span<const std::int64_t>);
template void multiply<Avx512<double>>(const GemmProblem<double>&, std::span<const std::int64_t>);
#endif

}  // namespace chain

void cpu::chain_gemm(const GemmProblem<float>& problem, std::span<const std::int64_t> blocks) {
  chain::multiply<chain::Widest<float>>(problem, blocks);
}

void cpu::chain_gemm(const GemmProblem<double>& problem, std::span<const std::int64_t> blocks) {
  chain::multiply<chain::Widest<double>>(problem, blocks);
}

}  // namespace lockstep::kernels
