#pragma once
/// Looks for gradients that are infinite or NaN, before and after their sum.

#include <cstdint>

#include "lockstep/dist/ddp/buckets/gradient_buckets.h"

namespace lockstep::dist {

/// The first gradient element of a backward that is infinite or NaN.
struct NonFiniteElement {
  int parameter = -1;  ///< index in registration order; -1: all are finite
  std::int64_t element = -1;

  bool found() const { return parameter >= 0; }
  /// Looks through a bucket's gradients unless one was found already. On a GPU the host waits.
  void look_in(const GradientBuckets::Bucket& bucket);
};

}  // namespace lockstep::dist
