#pragma once
/// The elements of two values, compared by their bits.

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::hashes {

/// Elements as a trace has them: their bytes in hex, the lowest first.
struct Elements {
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::string hex;
};

/// Where the first different element is, both values with their bits, how far they are apart, and
/// how many elements differ. Lines of text; empty if the values are not there or do not fit.
std::string first_different_element(const Elements& a, const Elements& b, const std::string& name_a,
                                    const std::string& name_b);

}  // namespace lockstep::hashes
