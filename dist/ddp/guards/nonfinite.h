#pragma once
/// Looks for numbers that are infinite or NaN: in gradients, before and after their sum, and in
/// parameters.

#include <cstdint>

#include "lockstep/dist/ddp/buckets/gradient_buckets.h"
#include "lockstep/dist/ddp/step_metadata.h"

namespace lockstep::dist {

/// Whether the policy looks through the gradients.
inline bool looks_in_gradients(NonFinite policy) {
  return policy == NonFinite::skip || policy == NonFinite::stop;
}

/// The first element of a gradient, or of a parameter, that is infinite or NaN.
struct NonFiniteElement {
  int parameter = -1;  ///< index in registration order; -1: all are finite
  std::int64_t element = -1;

  bool found() const { return parameter >= 0; }
  /// Looks through a bucket's gradients unless one was found already. On a GPU the host waits.
  void look_in(const GradientBuckets::Bucket& bucket);
  /// Looks through the values of all parameters. On a GPU the host waits.
  void look_in(std::span<const Parameter> parameters);
};

}  // namespace lockstep::dist
