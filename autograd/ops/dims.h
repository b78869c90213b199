#pragma once
/// How operations say along which dimensions they work.

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "lockstep/core/shape.h"

namespace lockstep {

/// Dimensions of a tensor; negative ones count from the end. 1 and {0, -1} are Dims. A reduction
/// along {} reduces nothing, as in NumPy.
class Dims {
 public:
  /// One of them, or several.
  Dims(int dim) : Dims({dim}) {}  // NOLINT: sum(x, 1)
  Dims(std::initializer_list<int> dims) : dims_(dims) {}
  Dims(double) = delete;  ///< sum(x, 0.5) is a slip
  /// All of them.
  static Dims all() {
    Dims result{};
    result.all_ = true;
    return result;
  }

  /// Bit d is set for every dimension d. Throws ShapeError, in the name of `operation`, for one
  /// that a tensor of this shape does not have, or that is named twice.
  unsigned mask(std::string_view operation, const Shape& shape) const;

 private:
  std::vector<int> dims_;
  bool all_ = false;
};

/// Dimension `dim` of a shape, counted from 0. Throws as Dims::mask.
int dimension(std::string_view operation, const Shape& shape, int dim);

/// Whether a reduction keeps the dimensions that it reduces, with size 1: sum(x, 1, keepdim).
enum class KeepDim : bool { no, yes };
inline constexpr KeepDim keepdim = KeepDim::yes;

}  // namespace lockstep
