#pragma once
/// From the 32-bit outputs of core/philox.h to dropout's decisions: the formulas of random.h,
/// shared by all devices, as functors.h is.

#include <cmath>

#include "lockstep/core/compiler.h"
#include "lockstep/core/philox.h"

namespace lockstep::kernels {

/// Output k of a block as a number, uniform in (0, 1]: cuRAND's (curand_uniform.h).
LOCKSTEP_HOST_DEVICE inline float unit(const PhiloxBlock& block, int k) {
  using std::fma;
  return fma(static_cast<float>(block.words[k]), 0x1p-32f, 0x1p-33f);
}

/// Dropout keeps an element whose number is below this. At p = 0 all are, 1 itself too.
inline float keep_below(double p) { return p == 0 ? 2.0f : static_cast<float>(1 - p); }

LOCKSTEP_HOST_DEVICE inline bool keeps(const PhiloxBlock& block, int k, float threshold) {
  return unit(block, k) < threshold;
}

/// What kept elements are multiplied by.
template <class T>
T keep_scale(double p) {
  return static_cast<T>(1 / (1 - p));
}

}  // namespace lockstep::kernels
