// Comparisons, masks, windows, indices and cumulative sums beside loops over the same elements.
#include "lockstep/kernels/indexed.h"

#include <algorithm>
#include <cstdint>

#include "kernels/support.h"
#include "lockstep/core/gpu/stream.h"
#include "lockstep/kernels/elementwise.h"

using namespace lockstep;
using namespace lockstep::kernels;
using namespace lockstep::test;

namespace {

template <class T>
Tensor integers(const Shape& shape, int seed, std::int64_t range) {
  std::vector<T> values;
  for (std::int64_t i = 0; i < shape.numel(); ++i)
    values.push_back(static_cast<T>(static_cast<std::int64_t>(value_at(i, seed) * 1e6) % range));
  return here(Tensor::of<T>(shape, values));
}

template <class T>
Tensor like(const Shape& shape) {
  return Tensor::full(shape, 99, dtype_of<T>(), test_device());
}

bool holds(Compare op, double a, double b) {
  switch (op) {
    case Compare::eq: return a == b;
    case Compare::ne: return a != b;
    case Compare::lt: return a < b;
    case Compare::le: return a <= b;
    case Compare::gt: return a > b;
    case Compare::ge: return a >= b;
  }
  return false;
}

}  // namespace

TEST_CASE_TEMPLATE("comparisons are those of the elements, of rows against columns too", T, float,
                   double, std::int32_t, std::int64_t) {
  for (const std::int64_t n : {0, 1, 7, 300})
    for (const Compare op :
         {Compare::eq, Compare::ne, Compare::lt, Compare::le, Compare::gt, Compare::ge}) {
      const Tensor a = integers<std::int64_t>({n, 1}, 1, 5), b = integers<std::int64_t>({3}, 2, 5);
      const Tensor x = like<T>({n, 1}), y = like<T>({3}), out = like<std::uint8_t>({n, 3});
      cast(a, x);
      cast(b, y);
      compare(op, x, y, out);
      const auto left = to_values<T>(x), right = to_values<T>(y);
      Values expected;
      for (const double l : left)
        for (const double r : right) expected.push_back(holds(op, l, r));
      CHECK(to_values<std::uint8_t>(out) == expected);
    }
}

TEST_CASE("of NaN only `ne` is true") {
  const Tensor x = nan<float>({2}), out = like<std::uint8_t>({2});
  for (const Compare op :
       {Compare::eq, Compare::ne, Compare::lt, Compare::le, Compare::gt, Compare::ge}) {
    compare(op, x, x, out);
    CHECK(to_values<std::uint8_t>(out) == Values(2, op == Compare::ne));
  }
}

TEST_CASE_TEMPLATE("a masked copy leaves the rest", T, float, double, std::int64_t, std::uint8_t) {
  const Tensor mask = here(Tensor::of<std::uint8_t>({2, 3}, {1, 0, 2, 0, 0, 1}));
  const Tensor row = of_values<T>({3}, {10, 20, 30}), out = like<T>({2, 3});
  masked_copy(mask, row, out);
  CHECK(to_values<T>(out) == Values{10, 99, 30, 99, 99, 30});
}

TEST_CASE_TEMPLATE("windows show what their strides say", T, float, double, std::int32_t) {
  const Tensor x = integers<T>({4, 5}, 3, 1000);
  const Values all = to_values<T>(x);
  const Tensor out = like<T>({2, 3});
  // rows 3 and 1, columns 4, 2, 0
  copy_window({2, 3}, x, {.first = 19, .strides = {-10, -2}}, out, whole({2, 3}));
  CHECK(to_values<T>(out) == Values{all[19], all[17], all[15], all[9], all[7], all[5]});
  // an element repeated, into every second column
  const Tensor wide = like<T>({2, 6});
  copy_window({2, 3}, x, {.first = 7, .strides = {0, 0}}, wide, {.first = 1, .strides = {6, 2}});
  Values expected(12, 99);
  for (const std::size_t i : {1, 3, 5, 7, 9, 11}) expected[i] = all[7];
  CHECK(to_values<T>(wide) == expected);
  if constexpr (std::is_floating_point_v<T>) {
    copy_window({2, 3}, x, whole({2, 3}), out, whole({2, 3}), true);
    CHECK(to_values<T>(out)[1] == all[17] + all[1]);
  }
}

TEST_CASE_TEMPLATE("elements are taken by index, and gradients go back to where they came from", T,
                   float, double) {
  for (const std::int64_t outer : {1, 3})
    for (const std::int64_t inner : {1, 4}) {
      const Taken rows{.outer = outer, .n = 5, .inner = inner, .count = 3};
      const Tensor x = varied<T>({outer, 5, inner});
      const Tensor index = here(Tensor::of<std::int64_t>({3}, {4, 0, 4}));
      const Tensor out = nan<T>({outer, 3, inner});
      take(rows, x, index, out);
      const Values from = to_values<T>(x);
      const auto at = [&](std::int64_t o, std::int64_t k, std::int64_t i) {
        return from[static_cast<std::size_t>((o * 5 + k) * inner + i)];
      };
      Values expected;
      for (std::int64_t o = 0; o < outer; ++o)
        for (const std::int64_t k : {4, 0, 4})
          for (std::int64_t i = 0; i < inner; ++i) expected.push_back(at(o, k, i));
      CHECK(to_values<T>(out) == expected);

      const Tensor dx = nan<T>({outer, 5, inner});
      add_taken(rows, out, index, dx, false);
      Values gradient;
      for (std::int64_t o = 0; o < outer; ++o)
        for (std::int64_t k = 0; k < 5; ++k)
          for (std::int64_t i = 0; i < inner; ++i)
            gradient.push_back(k == 4 ? 2 * at(o, 4, i) : k == 0 ? at(o, 0, i) : 0);
      CHECK(to_values<T>(dx) == gradient);
      add_taken(rows, out, index, dx, true);
      for (double& g : gradient) g *= 2;
      CHECK(to_values<T>(dx) == gradient);
    }
}

TEST_CASE_TEMPLATE("gradients that go back to one row are added in their order", T, float, double) {
  constexpr std::int64_t n = 3, count = 70;  // more indices than a warp sees at once
  std::vector<std::int64_t> from;
  for (std::int64_t k = 0; k < count; ++k) from.push_back(k * k % 5 % 4 == 0 ? 0 : 2);
  const Tensor index = here(Tensor::of<std::int64_t>({count}, from));
  for (const std::int64_t inner : {1, 31, 300})  // the last one is more than a warp has
    for (const bool accumulate : {false, true}) {
      const Taken rows{.outer = 2, .n = n, .inner = inner, .count = count};
      const Tensor dy = varied<T>({2, count, inner}), dx = varied<T>({2, n, inner}, 1);
      const std::vector<T> terms = dy.to_vector<T>();
      std::vector<T> sums = dx.to_vector<T>();
      if (!accumulate) std::ranges::fill(sums, T(0));
      for (std::int64_t o = 0; o < 2; ++o)
        for (std::int64_t k = 0; k < count; ++k)
          for (std::int64_t j = 0; j < inner; ++j)
            sums[static_cast<std::size_t>((o * n + from[static_cast<std::size_t>(k)]) * inner +
                                          j)] +=
                terms[static_cast<std::size_t>((o * count + k) * inner + j)];
      add_taken(rows, dy, index, dx, accumulate);
      CHECK(dx.to_vector<T>() == sums);
    }
}

TEST_CASE("an index of its own for every element") {
  const Taken each{.outer = 2, .n = 3, .inner = 2, .count = 1, .each = true};
  const Tensor x = of_values<float>({2, 3, 2}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  const Tensor index = here(Tensor::of<std::int64_t>({2, 1, 2}, {2, 0, 1, 1}));
  const Tensor out = nan<float>({2, 1, 2});
  take(each, x, index, out);
  CHECK(to_values<float>(out) == Values{4, 1, 8, 9});
}

TEST_CASE("an index outside its dimension is an error") {
  const Tensor x = varied<float>({3, 2}), out = nan<float>({2, 2});
  for (const std::int64_t wrong : {-1, 3, 1 << 30}) {
    const Tensor index = here(Tensor::of<std::int64_t>({2}, {2, wrong}));
    const auto attempt = [&] {
      take({.n = 3, .inner = 2, .count = 2}, x, index, out);
      Stream::current(test_device()).synchronize();  // a GPU tells at the next wait
    };
    CHECK_THROWS_AS(attempt(), DataError);
  }
  const Tensor nothing = nan<float>({0, 2}), one = here(Tensor::of<std::int64_t>({1}, {0}));
  CHECK_THROWS_AS(add_taken({.n = 0, .inner = 2}, x.slice(0, 1), one, nothing, false), DataError);
}

TEST_CASE_TEMPLATE("cumulative sums run along the middle, from either end", T, float, double,
                   std::int32_t, std::int64_t) {
  const Tensor x = integers<T>({2, 4, 3}, 5, 100), out = like<T>({2, 4, 3});
  const Values from = to_values<T>(x);
  for (const bool reverse : {false, true}) {
    cumulative_sum(2, 4, 3, reverse, x, out);
    Values expected(24);
    for (std::size_t o = 0; o < 2; ++o)
      for (std::size_t i = 0; i < 3; ++i) {
        double sum = 0;
        for (std::size_t step = 0; step < 4; ++step) {
          const std::size_t k = (o * 4 + (reverse ? 3 - step : step)) * 3 + i;
          expected[k] = sum += from[k];
        }
      }
    CHECK(to_values<T>(out) == expected);
  }
}

TEST_CASE("integers wrap around, are divided as in C++, and by 0 they give 0") {
  const std::int64_t lowest = std::numeric_limits<std::int64_t>::min();
  const Tensor a = here(Tensor::of<std::int64_t>({5}, {7, -7, 7, lowest, 5}));
  const Tensor b = here(Tensor::of<std::int64_t>({5}, {2, 2, -2, -1, 0}));
  const Tensor out = like<std::int64_t>({5});
  binary(Binary::div, a, b, out);
  CHECK(out.to_vector<std::int64_t>() == std::vector<std::int64_t>{3, -3, -3, lowest, 0});
  binary(Binary::sub, a, here(Tensor::of<std::int64_t>({}, {1})), out);
  CHECK(out.to_vector<std::int64_t>()[3] == std::numeric_limits<std::int64_t>::max());
  binary(Binary::remainder, a, b, out);
  CHECK(out.to_vector<std::int64_t>() == std::vector<std::int64_t>{1, -1, 1, 0, 0});
}

TEST_CASE_TEMPLATE("integers of every width are divided by every number", T, std::uint8_t,
                   std::int32_t, std::int64_t) {
  const auto every = [](std::initializer_list<int> numbers) {
    std::vector<T> values;
    for (const int number : numbers) values.push_back(static_cast<T>(number));
    return values;
  };
  const std::vector<T> dividends = every({0, 1, 100, 127, 128, 254, 255, -1, -100, -128});
  const std::vector<T> divisors = every({1, 2, 7, 100, 127, 128, 254, 255, -1, -2});
  const auto n = static_cast<std::int64_t>(dividends.size());
  const Tensor a = here(Tensor::of<T>({n, 1}, dividends)), b = here(Tensor::of<T>({n}, divisors));
  const Tensor quotients = like<T>({n, n}), rest = like<T>({n, n});
  binary(Binary::div, a, b, quotients);
  binary(Binary::remainder, a, b, rest);
  std::vector<T> expected, expected_rest;
  for (const T x : dividends)
    for (const T y : divisors) {
      expected.push_back(static_cast<T>(x / y));
      expected_rest.push_back(static_cast<T>(x % y));
    }
  CHECK(quotients.template to_vector<T>() == expected);
  CHECK(rest.template to_vector<T>() == expected_rest);
}

TEST_CASE("kernels that choose refuse what does not fit") {
  const Tensor x = varied<float>({2, 3}), d = varied<double>({2, 3});
  const Tensor mask = like<std::uint8_t>({2, 3});
  CHECK_THROWS_AS(compare(Compare::lt, x, d, mask), DTypeError);
  CHECK_THROWS_AS(compare(Compare::lt, x, x, x), DTypeError);
  CHECK_THROWS_AS(compare(Compare::lt, x, varied<float>({2}), mask), ShapeError);
  CHECK_THROWS_AS(masked_copy(x, x, x), DTypeError);
  CHECK_THROWS_AS(masked_copy(mask, varied<float>({2}), x), ShapeError);
  CHECK_THROWS_AS(take({.n = 2, .inner = 3, .count = 2}, x, mask, x), DTypeError);
  const Tensor half = Tensor::zeros({2, 3}, DType::f16, test_device());
  CHECK_THROWS_AS(cumulative_sum(1, 2, 3, false, half, half), DTypeError);
  CHECK_THROWS_AS(cumulative_sum(1, 3, 3, false, x, x), ShapeError);
}
