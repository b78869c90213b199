#include "lockstep/kernels/reduce.h"

#include "kernels/support.h"

using namespace lockstep;
using namespace lockstep::kernels;
using namespace lockstep::test;

namespace {

/// Sums x, by index arithmetic alone, to the shape `out`.
template <class T>
Values naive_sum_to(const Tensor& x, const Shape& out) {
  Values result(static_cast<std::size_t>(out.numel()), 0.0);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    std::int64_t rest = i, offset = 0, stride = 1;
    for (int d = 1; d <= x.rank(); ++d) {
      const std::int64_t coordinate = rest % x.size(-d);
      rest /= x.size(-d);
      if (d > out.rank()) continue;
      if (out[-d] != 1) offset += coordinate * stride;
      stride *= out[-d];
    }
    result[static_cast<std::size_t>(offset)] += static_cast<double>(x.data<T>()[i]);
  }
  return result;
}

/// Runs f(out, accumulate) over NaN without, then over what that left with `accumulate`.
template <class T, class F>
void check_both_ways(const Shape& shape, Values expected, double close, F&& f) {
  const Tensor out = nan<T>(shape);
  f(out, false);
  check_close<T>(out, expected, close);
  f(out, true);
  for (double& v : expected) v *= 2;
  check_close<T>(out, expected, close);
}

}  // namespace

TEST_CASE_TEMPLATE("sum", T, float, double) {
  for (std::int64_t n : {0, 1, 2, 63, 64, 65, 1000, 8192, 8193, 100'003}) {
    CAPTURE(n);
    const Tensor x = varied<T>({n});
    check_both_ways<T>({}, naive_sum_to<T>(x, {}), tolerance<T>(1e-5, 1e-12),
                       [&](const Tensor& out, bool add) { sum(x, out, add); });
    Values scaled = naive_sum_to<T>(x, {});
    scaled[0] *= 0.25;
    check_both_ways<T>({}, scaled, tolerance<T>(1e-5, 1e-12),
                       [&](const Tensor& out, bool add) { sum(x, out, add, 0.25); });
  }
}

TEST_CASE("a long sum stays accurate") {
  // One after the other, ten million times 0.1f would end at 1087937.
  const Tensor x = Tensor::full({10'000'000}, 0.1), out = Tensor::scalar(0);
  sum(x, out);
  CHECK(out.item() == doctest::Approx(1e7 * static_cast<double>(0.1f)).epsilon(1e-6));
  sum_rows(x.view({10'000'000, 1}), out.view({1}));
  CHECK(out.item() == doctest::Approx(1e7 * static_cast<double>(0.1f)).epsilon(1e-6));
}

TEST_CASE_TEMPLATE("the order of a sum does not depend on alignment", T, float, double) {
  const std::int64_t n = 1234;
  const Tensor first = nan<T>({}), out = nan<T>({});
  for (std::int64_t shift = 0; shift < 17; ++shift) {
    const Tensor x = Tensor::empty({n + shift}, dtype_of<T>()).slice(shift, n + shift);
    for (std::int64_t i = 0; i < n; ++i) x.data<T>()[i] = static_cast<T>(value_at(i) / 3);
    sum(x, shift == 0 ? first : out);
    if (shift > 0) CHECK(out.item() == first.item());
  }
}

TEST_CASE_TEMPLATE("the order of a sum is the documented one", T, float, double) {
  // 64 columns of 130 rows: rows 0..127 one after the other, plus rows 128 and 129; then by halves.
  const Tensor x = varied<T>({130 * 64}), out = nan<T>({});
  for (T& v : x.span<T>()) v /= 3;
  std::vector<T> total(64);
  for (std::size_t lane = 0; lane < 64; ++lane) {
    T head = 0, tail = 0;
    for (std::size_t row = 0; row < 128; ++row) head += x.span<T>()[row * 64 + lane];
    for (std::size_t row = 128; row < 130; ++row) tail += x.span<T>()[row * 64 + lane];
    total[lane] = head + tail;
  }
  for (std::size_t half = 32; half > 0; half /= 2)
    for (std::size_t lane = 0; lane < half; ++lane) total[lane] += total[lane + half];
  sum(x, out);
  CHECK(*out.data<T>() == total[0]);
}

TEST_CASE_TEMPLATE("sums over rows and columns", T, float, double) {
  for (std::int64_t rows : {0, 1, 3, 32, 129, 300})
    for (std::int64_t columns : {0, 1, 3, 10, 64, 65, 127, 200}) {
      CAPTURE(rows);
      CAPTURE(columns);
      const Tensor x = varied<T>({rows, columns});
      check_both_ways<T>({columns}, naive_sum_to<T>(x, {columns}), tolerance<T>(1e-4, 1e-13),
                         [&](const Tensor& out, bool add) { sum_rows(x, out, add); });
      check_both_ways<T>({rows}, naive_sum_to<T>(x, {rows, 1}), tolerance<T>(1e-5, 1e-13),
                         [&](const Tensor& out, bool add) { sum_cols(x, out, add); });
    }
}

TEST_CASE_TEMPLATE("sum_to inverts broadcasting", T, float, double) {
  const std::vector<std::pair<Shape, Shape>> table = {
      {{}, {}},
      {{5}, {5}},
      {{5}, {1}},
      {{5}, {}},
      {{1, 5}, {5}},
      {{7, 5}, {5}},
      {{7, 5}, {1, 5}},
      {{7, 5}, {7, 1}},
      {{7, 5}, {1, 1}},
      {{2, 3, 70}, {3, 70}},
      {{2, 3, 70}, {2, 3, 1}},
      {{2, 3, 70}, {3, 1}},
      {{2, 3, 70}, {2, 1, 70}},
      {{2, 3, 4, 5}, {2, 1, 4, 1}},
      {{2, 4, 3, 3, 2, 5}, {1, 4, 1, 3, 1, 5}},
      {{2, 4, 3, 3, 2, 5}, {2, 1, 3, 1, 2, 1}},
      {{0, 3}, {3}},
      {{0, 3}, {1, 1}},
      {{3, 0}, {3, 1}},
      {{3, 0}, {3, 0}},
      {{0}, {}},
      {{2, 0, 3}, {2, 1, 3}},
      {{1, 1, 1}, {}},
  };
  for (const auto& [from, to] : table) {
    CAPTURE(from.to_string());
    CAPTURE(to.to_string());
    const Tensor x = varied<T>(from);
    check_both_ways<T>(to, naive_sum_to<T>(x, to), tolerance<T>(1e-5, 1e-13),
                       [&](const Tensor& out, bool add) { sum_to(x, out, add); });
  }
}

TEST_CASE("sum_to takes tensors that a tape knows") {
  // Such a tensor refuses view() and slice(), which are not recorded.
  Tensor x = varied<float>({2, 3, 5});
  x.set_gradient_ref({.tape = 1, .target = nullptr});
  for (const Shape& shape :
       {Shape{2, 3, 5}, Shape{3, 5}, Shape{2, 3, 1}, Shape{2, 1, 5}, Shape{}}) {
    Tensor out = nan<float>(shape);
    out.set_gradient_ref({.tape = 1, .target = nullptr});
    sum_to(x, out);
    check_close<float>(out, naive_sum_to<float>(x, shape), 1e-6);
  }
}

TEST_CASE_TEMPLATE("argmax takes the first of the largest, and NaN before all", T, float, double) {
  const T nan_value = std::numeric_limits<T>::quiet_NaN(), inf = std::numeric_limits<T>::infinity();
  const Tensor x = Tensor::of<T>(
      {5, 3}, {1, 3, 3, -2, -3, -2, 0, nan_value, inf, -inf, -inf, -inf, nan_value, 9, nan_value});
  const Tensor out = Tensor::empty({5}, DType::i64);
  argmax(x, out);
  CHECK(out.to_vector<std::int64_t>() == std::vector<std::int64_t>{1, 0, 1, 0, 0});
  argmax(Tensor::zeros({0, 3}, dtype_of<T>()), Tensor::empty({0}, DType::i64));
  const Tensor index = Tensor::empty({}, DType::i64);
  argmax(Tensor::of<T>({4}, {1, 2, 7, 3}), index);
  CHECK(index.item() == 2);
}

TEST_CASE_TEMPLATE("all_finite finds one bad element anywhere", T, float, double) {
  const double bad_values[] = {std::nan(""), std::numeric_limits<double>::infinity(),
                               -std::numeric_limits<double>::infinity()};
  CHECK(all_finite(Tensor::empty({0}, dtype_of<T>())));
  CHECK(all_finite(Tensor::full({3}, std::numeric_limits<T>::max(), dtype_of<T>())));
  for (std::int64_t n : {1, 17, 5000})
    for (std::int64_t at : {std::int64_t{0}, n / 2, n - 1})
      for (double bad : bad_values) {
        const Tensor x = varied<T>({n});
        CHECK(all_finite(x));
        x.data<T>()[at] = static_cast<T>(bad);
        CHECK_FALSE(all_finite(x));
      }
}

TEST_CASE("reductions refuse what does not fit") {
  const Tensor x = varied<float>({2, 3});
  CHECK_THROWS_WITH_AS(sum(x, x), "[sum] out: expected one element, got shape (2, 3)", ShapeError);
  CHECK_THROWS_WITH_AS(sum_rows(x, varied<float>({2})),
                       "[sum_rows] out: expected shape (3,), got (2,)", ShapeError);
  CHECK_THROWS_AS(sum_cols(x, varied<float>({3})), ShapeError);
  CHECK_THROWS_AS(sum_rows(varied<float>({3}), varied<float>({3})), ShapeError);
  CHECK_THROWS_WITH_AS(sum_to(varied<float>({3}), x),
                       "[sum_to] out of shape (2, 3) does not broadcast to x of shape (3,)",
                       ShapeError);
  CHECK_THROWS_AS(sum_to(x, varied<float>({2})), ShapeError);
  CHECK_THROWS_AS(sum(x, varied<double>({})), DTypeError);
  CHECK_THROWS_AS(argmax(x, varied<float>({2})), DTypeError);
  CHECK_THROWS_WITH_AS(argmax(varied<float>({2, 0}), Tensor::zeros({2}, DType::i64)),
                       "[argmax] x has no last dimension to search: (2, 0)", ShapeError);
  CHECK_THROWS_AS(all_finite(Tensor::zeros({2}, DType::i64)), DTypeError);
}
