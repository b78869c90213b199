#include "lockstep/kernels/cpu/backend.h"

namespace lockstep::kernels {

void CpuBackend::cast(const Tensor& x, const Tensor& out) {
  visit_any_floating("cast", x.dtype(), [&](auto from) {
    visit_any_floating("cast", out.dtype(), [&](auto to) {
      using From = decltype(from);
      using To = decltype(to);
      // 16-bit types convert from and to f32 and f64 only.
      constexpr bool both_16_bit = sizeof(From) == 2 && sizeof(To) == 2;
      using Between = std::conditional_t<both_16_bit, float, From>;
      const From* source = x.data<From>();
      To* target = out.data<To>();
      for (std::int64_t i = 0; i < x.numel(); ++i)
        target[i] = static_cast<To>(static_cast<Between>(source[i]));
    });
  });
}

namespace {

/// By tiles, which are turned in a buffer: rows that are powers of two apart compete for the same
/// few lines of the first-level cache, where neither a tile of x nor one of `out` would stay.
template <class T>
void transpose_words(const T* x, std::int64_t rows, std::int64_t columns, T* out) {
  constexpr std::int64_t height = 128, width = 16;
  T tile[width][height];
  const auto turn = [&](std::int64_t row0, std::int64_t column0, std::int64_t r_end, auto c_end) {
    const T* from = x + row0 * columns + column0;
    for (std::int64_t r = 0; r < r_end; ++r, from += columns)
      for (std::int64_t c = 0; c < c_end; ++c) tile[c][r] = from[c];
    for (std::int64_t c = 0; c < c_end; ++c)
      std::copy_n(tile[c], r_end, out + (column0 + c) * rows + row0);
  };
  for (std::int64_t column0 = 0; column0 < columns; column0 += width)
    for (std::int64_t row0 = 0; row0 < rows; row0 += height) {
      const std::int64_t r_end = std::min(height, rows - row0), c_end = columns - column0;
      if (c_end >= width)  // known to the compiler
        turn(row0, column0, r_end, std::integral_constant<std::int64_t, width>());
      else
        turn(row0, column0, r_end, c_end);
    }
}

}  // namespace

void CpuBackend::transpose(const Tensor& x, const Tensor& out) {
  visit_any(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t rows = x.size(-2), columns = x.size(-1);
    for (std::int64_t begin = 0; begin < x.numel(); begin += rows * columns)
      transpose_words(x.data<T>() + begin, rows, columns, out.data<T>() + begin);
  });
}

}  // namespace lockstep::kernels
