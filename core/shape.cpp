#include "lockstep/core/shape.h"

#include <algorithm>
#include <array>

namespace lockstep {

void Shape::refuse(std::span<const std::int64_t> sizes) {
  check<ShapeError>(sizes.size() <= max_rank, "[shape] {} dimensions; at most {} are supported",
                    sizes.size(), max_rank);
  Shape shape;
  shape.rank_ = static_cast<int>(sizes.size());
  std::ranges::copy(sizes, shape.sizes_.begin());
  for (const std::int64_t size : sizes)
    check<ShapeError>(size >= 0, "[shape] negative size {} in {}", size, shape);
  fail<ShapeError>("[shape] {} has more than 2^59 elements", shape);
}

void Shape::refuse_dimension(int i) const {
  fail<ShapeError>("[shape] there is no dimension {} in {}", i, *this);
}

Shape Shape::with(int first, int last, std::initializer_list<std::int64_t> sizes) const {
  std::array<std::int64_t, 2 * max_rank> result{};  // no heap: views are made in every step
  auto* const behind =
      std::ranges::copy(sizes, std::copy(begin(), begin() + first, result.data())).out;
  return Shape(
      std::span<const std::int64_t>(result.data(), std::copy(begin() + last, end(), behind)));
}

std::string Shape::to_string() const {
  if (rank_ == 1) return fmt::format("({},)", sizes_[0]);
  std::string text = "(";
  for (int i = 0; i < rank_; ++i)
    text += fmt::format("{}{}", i ? ", " : "", sizes_[static_cast<std::size_t>(i)]);
  return text + ")";
}

Shape Shape::broadcast(std::string_view operation, const Shape& a, const Shape& b) {
  std::array<std::int64_t, max_rank> sizes{};
  const int rank = std::max(a.rank_, b.rank_);
  for (int i = 1; i <= rank; ++i) {  // from the last dimension to the first
    const std::int64_t x = i <= a.rank_ ? a[-i] : 1;
    const std::int64_t y = i <= b.rank_ ? b[-i] : 1;
    check<ShapeError>(x == y || x == 1 || y == 1, "[{}] shapes do not broadcast: {} and {}",
                      operation, a, b);
    sizes[static_cast<std::size_t>(rank - i)] = x == 1 ? y : x;
  }
  return Shape(std::span<const std::int64_t>(sizes.data(), static_cast<std::size_t>(rank)));
}

}  // namespace lockstep
