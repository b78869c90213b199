#include "lockstep/kernels/cpu/backend.h"
#include "lockstep/kernels/formulas/functors.h"

namespace lockstep::kernels {

void CpuBackend::bias_activation(const Tensor& x, const Tensor& bias, Activation activation,
                                 const Tensor& out) {
  visit_floating("bias_activation", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t columns = x.size(1);
    const T* b = bias.data<T>();
    const auto run = [&](auto f) {
      for (std::int64_t row = 0; row < x.size(0); ++row) {
        const T* from = x.data<T>() + row * columns;
        T* to = out.data<T>() + row * columns;
        for (std::int64_t i = 0; i < columns; ++i) to[i] = f(from[i] + b[i]);
      }
    };
    if (activation == Activation::relu)
      run([](T value) { return Relu::forward(value); });
    else
      run([](T value) { return value; });
  });
}

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

/// By square tiles that stay in the first-level cache, also where their rows, powers of two apart,
/// compete for the same few lines of it.
template <class T>
void transpose_words(const T* x, std::int64_t rows, std::int64_t columns, T* out) {
  constexpr std::int64_t side = 8;
  for (std::int64_t row0 = 0; row0 < rows; row0 += side)
    for (std::int64_t column0 = 0; column0 < columns; column0 += side)
      for (std::int64_t c = column0; c < std::min(column0 + side, columns); ++c)
        for (std::int64_t r = row0; r < std::min(row0 + side, rows); ++r)
          out[c * rows + r] = x[r * columns + c];
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
