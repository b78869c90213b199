// Filling memory of the device: every size of element, all lengths, and nothing besides.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "lockstep/core/half.h"
#include "support/device.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

template <class T>
double value(T x) {
  return static_cast<double>(x);
}

/// Elements [1, 1 + n) of n + 2 become 7; the first and the last keep what they were.
template <class T>
void check_fill(std::int64_t n) {
  CAPTURE(n);
  std::vector<T> values(static_cast<std::size_t>(n) + 2, T(3.0f));
  const Tensor all = here(Tensor::of<T>({n + 2}, values));
  all.slice(1, 1 + n).fill(7);
  std::fill(values.begin() + 1, values.end() - 1, T(7.0f));
  const std::vector<T> filled = all.to_vector<T>();
  CHECK(std::ranges::equal(values, filled, {}, value<T>, value<T>));
}

}  // namespace

TEST_CASE_TEMPLATE("fill sets every element and no other", T, std::uint8_t, Half, BFloat16,
                   std::int32_t, float, std::int64_t, double) {
  for (const std::int64_t n : {0, 1, 2, 255, 1025}) check_fill<T>(n);
}

TEST_CASE("fill of more elements than the grid has threads") {
  check_fill<std::uint8_t>(4096 * 256 + 3);
}
