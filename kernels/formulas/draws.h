#pragma once
/// From the 32-bit outputs of core/philox.h to numbers: the formulas of random.h, shared by all
/// devices, as functors.h is. They are cuRAND's (curand_uniform.h, curand_normal.h).

#include <cmath>

#include "lockstep/core/compiler.h"
#include "lockstep/core/philox.h"

namespace lockstep::kernels {

/// How many numbers of type T a block of outputs makes: 4 f32 or 2 f64.
template <class T>
inline constexpr int per_block = 16 / static_cast<int>(sizeof(T));

/// Number k of a block, uniform in (0, 1].
template <class T>
LOCKSTEP_HOST_DEVICE inline T unit(const PhiloxBlock& block, int k) {
  using std::fma;
  if constexpr (sizeof(T) == 4) {
    return fma(static_cast<T>(block.words[k]), T(0x1p-32f), T(0x1p-33f));
  } else {
    const std::uint64_t bits =
        block.words[2 * k] ^ static_cast<std::uint64_t>(block.words[2 * k + 1]) << 21;
    return fma(static_cast<T>(bits), T(0x1p-53), T(0x1p-54));
  }
}

/// The same in [low, high).
template <class T>
LOCKSTEP_HOST_DEVICE inline T uniform_between(const PhiloxBlock& block, int k, T low, T high) {
  using std::fma;
  const T value = fma(unit<T>(block, k), high - low, low);
  return value < high ? value : low;
}

/// Normal numbers 2 k and 2 k + 1 of a block are radius * sin(angle) and radius * cos(angle).
template <class T>
struct Polar {
  T radius, angle;
};
template <class T>
LOCKSTEP_HOST_DEVICE inline Polar<T> box_muller(const PhiloxBlock& block, int k) {
  using std::log, std::sqrt;
  constexpr T two_pi = T(6.283185307179586);
  return {sqrt(T(-2) * log(unit<T>(block, 2 * k))), unit<T>(block, 2 * k + 1) * two_pi};
}

/// Dropout keeps an element whose f32 number is below this. At p = 0 all are, 1 itself too.
inline float keep_below(double p) { return p == 0 ? 2.0f : static_cast<float>(1 - p); }

LOCKSTEP_HOST_DEVICE inline bool keeps(const PhiloxBlock& block, int k, float threshold) {
  return unit<float>(block, k) < threshold;
}

/// What kept elements are multiplied by.
template <class T>
T keep_scale(double p) {
  return static_cast<T>(1 / (1 - p));
}

}  // namespace lockstep::kernels
