#pragma once
/// Which products the ladder makes where the build has cuBLAS, too: those for which it takes less
/// time, or about as much. A pure function of the sizes: the same bits on every GPU.
///
/// From times on an H100 (docs/benchmarks.md, "The products that the library chooses"). Small
/// products take cuBLAS longer: in f32 1.1 to 2.3 times as long below 2^27 multiply-adds. At the
/// limits themselves it takes 0.89 to 1.13 of our time in f32, and 0.91 to 1.2 in 16 bits. Above
/// that its f32 is faster by a sixth. In 16 bits both take about the same time; but the ladder does
/// in its kernel what cuBLAS leaves to further passes over the results.

#include <cstdint>

namespace lockstep::kernels::cuda {

enum class Precision : std::uint8_t { f32, tf32, sixteen_bits };

/// (m, k) x (k, n); `fused`: a bias, relu or sums of rows come with it.
constexpr bool by_hand(Precision precision, std::int64_t m, std::int64_t n, std::int64_t k,
                       bool fused) {
  const std::int64_t operations = m * n * k;
  switch (precision) {
    case Precision::f32: return operations <= std::int64_t{1} << 27;
    case Precision::tf32: return operations <= std::int64_t{1} << 25;
    default: return fused || operations <= std::int64_t{1} << 30;
  }
}

}  // namespace lockstep::kernels::cuda
