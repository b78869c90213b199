#pragma once
/// The formulas of clip.h: one text for the processor's loops and for the threads of a GPU.

#include "lockstep/core/compiler.h"

namespace lockstep::kernels {

/// Scales by min(1, max_norm / (norm + 1e-6)). The comparison is such that NaN passes.
template <class T>
struct ByNorm {
  T factor;

  static LOCKSTEP_HOST_DEVICE ByNorm of(double norm, double max_norm) {
    const double ratio = max_norm / (norm + 1e-6);
    return {static_cast<T>(ratio > 1 ? 1 : ratio)};
  }
  LOCKSTEP_HOST_DEVICE bool changes_nothing() const { return factor == T(1); }
  LOCKSTEP_HOST_DEVICE T operator()(T x) const { return x * factor; }
};

/// Moves into [-limit, limit]. The comparisons are such that NaN passes.
template <class T>
struct ByValue {
  T limit;

  LOCKSTEP_HOST_DEVICE bool changes_nothing() const { return false; }
  LOCKSTEP_HOST_DEVICE T operator()(T x) const {
    return x > limit ? limit : x < -limit ? -limit : x;
  }
};

}  // namespace lockstep::kernels
