// The tree fold against a recursion written down separately, bit for bit.

#include "lockstep/kernels/fold.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

using namespace lockstep;

namespace {

// Values whose sums round, so that the order of additions shows.
float value(std::size_t source, std::size_t i) {
  return std::sin(static_cast<float>(i * 31 + source * 7 + 1)) *
         std::exp2(static_cast<float>(source % 5));
}

// Split at the largest power of two below n: found by counting, not by bits.
template <class T>
T tree(const std::vector<T>& values, std::size_t begin, std::size_t n) {
  if (n == 1) return values[begin];
  std::size_t left = 1;
  while (left * 2 < n) left *= 2;
  return tree(values, begin, left) + tree(values, begin + left, n - left);
}

template <class T>
struct Arrays {
  Arrays(std::size_t n, std::size_t count) : data(n, std::vector<T>(count)) {
    for (std::size_t k = 0; k < n; ++k) {
      for (std::size_t i = 0; i < count; ++i) data[k][i] = static_cast<T>(1000 * value(k, i));
      sources.push_back(reinterpret_cast<const std::byte*>(data[k].data()));
      destinations.push_back(reinterpret_cast<std::byte*>(data[k].data()));
    }
  }
  T expected(std::size_t i) const {
    std::vector<T> column;
    for (const auto& row : data) column.push_back(row[i]);
    return tree(column, 0, column.size());
  }
  std::vector<std::vector<T>> data;
  std::vector<const std::byte*> sources;
  std::vector<std::byte*> destinations;
};

template <class T>
void check_fold(std::size_t n, std::size_t count) {
  CAPTURE(n);
  CAPTURE(count);
  Arrays<T> arrays(n, count);
  std::vector<T> expected(count);
  for (std::size_t i = 0; i < count; ++i) expected[i] = arrays.expected(i);

  std::vector<T> apart(count);
  std::byte* const out = reinterpret_cast<std::byte*>(apart.data());
  kernels::fold(dtype_of<T>(), arrays.sources, std::span(&out, 1),
                static_cast<std::int64_t>(count));
  CHECK(std::memcmp(apart.data(), expected.data(), count * sizeof(T)) == 0);

  kernels::fold(dtype_of<T>(), arrays.sources, arrays.destinations,
                static_cast<std::int64_t>(count));
  for (const auto& row : arrays.data) {
    CHECK(std::memcmp(row.data(), expected.data(), count * sizeof(T)) == 0);
  }
}

}  // namespace

TEST_CASE("fold is a balanced tree for any number of sources and elements") {
  for (std::size_t n = 1; n <= 9; ++n) {
    for (const std::size_t count : {1, 3, 17, 1023, 1024, 1025, 3001}) {
      check_fold<float>(n, count);
      check_fold<double>(n, count);
      check_fold<std::int32_t>(n, count);
      check_fold<std::int64_t>(n, count);
    }
  }
  check_fold<float>(33, 1500);
}

TEST_CASE("the order of additions shows in these values") {
  // Negative control: a chain from the left must not pass for the tree.
  int differences = 0;
  for (std::size_t i = 0; i < 1000; ++i) {
    std::vector<float> column;
    float chain = 0;
    for (std::size_t k = 0; k < 7; ++k) {
      column.push_back(value(k, i));
      chain = k == 0 ? column[0] : chain + column[k];
    }
    differences += std::bit_cast<std::uint32_t>(chain) !=
                   std::bit_cast<std::uint32_t>(tree(column, 0, column.size()));
  }
  CHECK(differences > 100);
}

TEST_CASE("fold of nothing, of integers that overflow, and of what it does not take") {
  const std::int32_t most = std::numeric_limits<std::int32_t>::max();
  std::int32_t sum = 0;
  const std::vector<const std::byte*> two(2, reinterpret_cast<const std::byte*>(&most));
  std::byte* const out = reinterpret_cast<std::byte*>(&sum);
  kernels::fold(DType::i32, two, std::span(&out, 1), 0);
  CHECK(sum == 0);
  kernels::fold(DType::i32, two, std::span(&out, 1), 1);
  CHECK(sum == -2);
  CHECK_THROWS_AS(kernels::fold(DType::u8, two, std::span(&out, 1), 1), DTypeError);
  CHECK_THROWS_AS(kernels::fold(DType::f32, {}, std::span(&out, 1), 1), ShapeError);
}
