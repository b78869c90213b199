#pragma once
/// The sizes of a tensor, row-major. Held inline (no heap), at most `max_rank` of them; rank 0 is a
/// scalar of one element, and sizes may be 0.

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "lockstep/core/error.h"
#include "lockstep/core/text/format.h"

namespace lockstep {

class Shape {
 public:
  static constexpr int max_rank = 6;

  Shape() = default;  ///< the shape of a scalar
  Shape(std::initializer_list<std::int64_t> sizes)
      : Shape(std::span<const std::int64_t>(sizes.begin(), sizes.size())) {}
  /// Throws ShapeError for a negative size, more than max_rank sizes, or a product beyond 2^59.
  explicit Shape(std::span<const std::int64_t> sizes);

  int rank() const { return rank_; }
  std::int64_t numel() const { return numel_; }

  /// Size of dimension i; negative i counts from the end (-1 is the last).
  std::int64_t operator[](int i) const;

  const std::int64_t* begin() const { return sizes_.data(); }
  const std::int64_t* end() const { return sizes_.data() + rank_; }

  bool operator==(const Shape&) const = default;

  /// The same, with `sizes` in the place of dimensions begin to end - 1: with(1, 2, {5, 6}) makes
  /// (2, 5, 6, 4) of (2, 3, 4).
  Shape with(int begin, int end, std::initializer_list<std::int64_t> sizes) const;

  std::string to_string() const;  ///< "(32, 64)"; "(5,)"; "()"

  /// NumPy's rule: sizes are aligned at the end; equal, or one of them is 1. Throws ShapeError in
  /// the name of `operation`.
  static Shape broadcast(std::string_view operation, const Shape& a, const Shape& b);

 private:
  [[noreturn]] static void refuse(std::span<const std::int64_t> sizes);
  [[noreturn]] void refuse_dimension(int i) const;

  std::array<std::int64_t, max_rank> sizes_{};  // those beyond the rank are 0
  int rank_ = 0;
  std::int64_t numel_ = 1;
};

inline std::string to_string(const Shape& shape) { return shape.to_string(); }

// Inline: every operation of a step makes and reads shapes.
inline Shape::Shape(std::span<const std::int64_t> sizes) {
  constexpr std::int64_t limit = std::int64_t{1} << 59;  // times 8 bytes is below 2^63
  if (sizes.size() > max_rank) [[unlikely]]
    refuse(sizes);
  for (const std::int64_t size : sizes) {
    if (size < 0 || __builtin_mul_overflow(numel_, size, &numel_) || numel_ > limit) [[unlikely]]
      refuse(sizes);
    sizes_[static_cast<std::size_t>(rank_++)] = size;
  }
}

inline std::int64_t Shape::operator[](int i) const {
  const int index = i < 0 ? i + rank_ : i;
  if (index < 0 || index >= rank_) [[unlikely]]
    refuse_dimension(i);
  return sizes_[static_cast<std::size_t>(index)];
}

}  // namespace lockstep

template <>
struct fmt::formatter<lockstep::Shape> : lockstep::TextFormatter {};
