#pragma once
/// The elements of two values, compared by their bits.

#include <string>

#include "lockstep/core/shape.h"

namespace lockstep::hashes {

/// Elements as a trace has them: their bytes in hex, the lowest first.
struct Elements {
  std::string dtype;
  Shape shape;
  std::string hex;  ///< empty unless they were asked for

  /// "f32 (32, 64)"
  std::string type() const { return fmt::format("{} {}", dtype, shape); }
};

/// Where the first different element is, both values with their bits, how far they are apart, and
/// how many elements differ. Lines of text; empty if the values are not there or do not fit.
std::string first_different_element(const Elements& a, const Elements& b, const std::string& name_a,
                                    const std::string& name_b);

}  // namespace lockstep::hashes
