#include "lockstep/kernels/reduce.h"

#include "kernels/support.h"
#include "support/capture_binding.h"

using namespace lockstep;
using namespace lockstep::kernels;
using namespace lockstep::test;

namespace {

/// Sums x, by index arithmetic alone, to the shape `out`.
template <class T>
Values naive_sum_to(const Tensor& x, const Shape& out) {
  Values result(static_cast<std::size_t>(out.numel()), 0.0);
  const Values terms = to_values<T>(x);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    std::int64_t rest = i, offset = 0, stride = 1;
    for (int d = 1; d <= x.rank(); ++d) {
      const std::int64_t coordinate = rest % x.size(-d);
      rest /= x.size(-d);
      if (d > out.rank()) continue;
      if (out[-d] != 1) offset += coordinate * stride;
      stride *= out[-d];
    }
    result[static_cast<std::size_t>(offset)] += terms[static_cast<std::size_t>(i)];
  }
  return result;
}

/// Runs f(out, accumulate) over NaN without, then with `accumulate` over what that left, and over
/// numbers of their own.
template <class T, class F>
void check_both_ways(const Shape& shape, Values expected, double close, F&& f) {
  const Tensor out = nan<T>(shape);
  f(out, false);
  check_close<T>(out, expected, close);
  f(out, true);
  const Values once = expected;
  for (double& v : expected) v *= 2;
  check_close<T>(out, expected, close);
  const Tensor begun = varied<T>(shape, 7);
  expected = to_values<T>(begun);
  for (std::size_t i = 0; i < once.size(); ++i) expected[i] += once[i];
  f(begun, true);
  check_close<T>(begun, expected, 2 * close);
}

}  // namespace

TEST_CASE_TEMPLATE("sum", T, float, double) {
  for (std::int64_t n : {0, 1, 2, 63, 64, 65, 1000, 8192, 8193, 100'003}) {
    CAPTURE(n);
    const Tensor x = varied<T>({n});
    check_both_ways<T>({}, naive_sum_to<T>(x, {}), tolerance<T>(1e-5, 1e-12),
                       [&](const Tensor& out, bool add) { sum(x, out, add); });
    Values divided = naive_sum_to<T>(x, {});
    divided[0] /= 4;
    check_both_ways<T>({}, divided, tolerance<T>(1e-5, 1e-12),
                       [&](const Tensor& out, bool add) { sum(x, out, add, 4); });
  }
}

TEST_CASE("a long sum stays accurate") {
  // One after the other, ten million times 0.1f would end at 1087937, and a million times at
  // 100958.
  const std::int64_t n = on_cpu() ? 10'000'000 : 1'000'000;
  const double expected = static_cast<double>(n) * static_cast<double>(0.1f);
  const Tensor x = Tensor::full({n}, 0.1, DType::f32, test_device()), out = nan<float>({});
  sum(x, out);
  CHECK(out.item() == doctest::Approx(expected).epsilon(1e-6));
  sum_rows(x.view({n, 1}), out.view({1}));
  CHECK(out.item() == doctest::Approx(expected).epsilon(1e-6));
  const Tensor of_columns = nan<float>({2});
  sum_rows(x.view({n / 2, 2}), of_columns);
  check_close<float>(of_columns, {expected / 2, expected / 2}, 1e-6);
}

TEST_CASE_TEMPLATE("the order of a sum does not depend on alignment", T, float, double) {
  const auto thirds = [](const Shape& shape) {
    Values values(static_cast<std::size_t>(shape.numel()));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = value_at(static_cast<std::int64_t>(i)) / 3;
    return of_values<T>(shape, values);
  };
  const auto check = [](const Tensor& x, const Shape& shape, auto&& f) {
    const Tensor first = nan<T>(shape), out = nan<T>(shape);
    f(x, first);
    for (std::int64_t by : {1, 2, 3, 4, 5, 7, 8, 16}) {
      CAPTURE(by);
      f(shifted<T>(x, by), out);
      check_close<T>(out, to_values<T>(first), 0);
    }
  };
  const auto total = [](const Tensor& x, const Tensor& out) { sum(x, out); };
  const auto over_rows = [](const Tensor& x, const Tensor& out) { sum_rows(x, out); };
  const auto over_columns = [](const Tensor& x, const Tensor& out) { sum_cols(x, out); };
  check(thirds({1234}), {}, total);
  check(thirds({1235}), {}, total);
  check(thirds({50, 12}), {12}, over_rows);
  check(thirds({50, 13}), {13}, over_rows);
  check(thirds({5, 124}), {5}, over_columns);
  check(thirds({5, 123}), {5}, over_columns);
  check(thirds({3, 1236}), {3}, over_columns);
}

TEST_CASE_TEMPLATE("the order of a sum on a processor is the documented one", T, float, double) {
  if (!on_cpu()) return;  // the next test is for the others
  // 32 columns of 130 rows: rows 0..127 one after the other, plus rows 128 and 129; then by halves.
  constexpr std::size_t width = 32, rows = 130;
  const Tensor x = varied<T>({rows * width}), out = nan<T>({});
  for (T& v : x.span<T>()) v /= 3;
  std::vector<double> total(width);
  for (std::size_t lane = 0; lane < width; ++lane) {
    double head = 0, tail = 0;
    for (std::size_t row = 0; row < 128; ++row) head += double{x.span<T>()[row * width + lane]};
    for (std::size_t row = 128; row < rows; ++row) tail += double{x.span<T>()[row * width + lane]};
    total[lane] = head + tail;
  }
  for (std::size_t half = width / 2; half > 0; half /= 2)
    for (std::size_t lane = 0; lane < half; ++lane) total[lane] += total[lane + half];
  sum(x, out);
  CHECK(*out.data<T>() == static_cast<T>(total[0]));
}

TEST_CASE_TEMPLATE("the order of a sum on a GPU is the documented one", T, float, double) {
  if (on_cpu()) return;  // see cuda/reduction.cuh
  // A thread adds every 256th access of 16 bytes, place by place, then its places; threads are
  // added by halves within 32 neighbours, then so are those 8 sums.
  constexpr std::size_t n = 7001, threads = 256, width = 16 / sizeof(T);
  std::vector<T> terms(n), sums(threads);
  for (std::size_t i = 0; i < n; ++i)
    terms[i] = static_cast<T>(value_at(static_cast<std::int64_t>(i)) / 3);
  for (std::size_t thread = 0; thread < threads; ++thread) {
    T places[width] = {};
    for (std::size_t at = thread * width; at < n; at += threads * width)
      for (std::size_t i = 0; i < width && at + i < n; ++i) places[i] += terms[at + i];
    sums[thread] = places[0];
    for (std::size_t i = 1; i < width; ++i) sums[thread] += places[i];
  }
  const auto fold = [&](std::size_t first, std::size_t count, std::size_t stride) {
    for (std::size_t half = count / 2; half > 0; half /= 2)
      for (std::size_t i = 0; i < half; ++i)
        sums[first + i * stride] += sums[first + (i + half) * stride];
  };
  for (std::size_t warp = 0; warp < threads; warp += 32) fold(warp, 32, 1);
  fold(0, threads / 32, 32);
  const Tensor out = nan<T>({});
  sum(here(Tensor::of<T>({n}, terms)), out);
  CHECK(out.to_vector<T>()[0] == sums[0]);
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

TEST_CASE_TEMPLATE("sums over many rows and over long ones", T, float, double) {
  // Rows and columns that are cut into parts, whose sums are added in turn.
  for (const auto& [rows, columns] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {9000, 2}, {3001, 3}, {1500, 36}, {700, 265}, {3, 1026}, {2, 16385}, {3, 36000}}) {
    CAPTURE_BINDING(rows);
    CAPTURE_BINDING(columns);
    for (const bool shift : {false, true}) {
      const Tensor aligned = varied<T>({rows, columns});
      const Tensor x = shift ? shifted<T>(aligned) : aligned;
      check_both_ways<T>({columns}, naive_sum_to<T>(x, {columns}), tolerance<T>(1e-4, 1e-12),
                         [&](const Tensor& out, bool add) { sum_rows(x, out, add); });
      check_both_ways<T>({rows}, naive_sum_to<T>(x, {rows, 1}), tolerance<T>(1e-4, 1e-12),
                         [&](const Tensor& out, bool add) { sum_cols(x, out, add); });
    }
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
      {{3, 700, 4}, {3, 1, 4}},
      {{70, 3, 300}, {1, 3, 1}},
      {{0, 3}, {3}},
      {{0, 3}, {1, 1}},
      {{3, 0}, {3, 1}},
      {{3, 0}, {3, 0}},
      {{0}, {}},
      {{2, 0, 3}, {2, 1, 3}},
      {{1, 1, 1}, {}},
  };
  for (const auto& [from, to] : table) {
    const std::string shapes = fmt::format("{} to {}", from, to);
    CAPTURE(shapes);
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
    const Tensor out = nan<float>(shape);
    sum_to(x, out);
    check_close<float>(out, naive_sum_to<float>(x, shape), 1e-6);
  }
}

TEST_CASE_TEMPLATE("argmax takes the first of the largest, and NaN before all" *
                       doctest::test_suite("not-late"),
                   T, float, double) {
  const double nan_value = std::nan(""), inf = std::numeric_limits<double>::infinity();
  const Tensor x = of_values<T>({6, 3}, {1, 3, 3, -2, -3, -2, 0, nan_value, inf, -inf, -inf, -inf,
                                         nan_value, 9, nan_value, nan_value, 9, 3});
  const Tensor out = here(Tensor::zeros({6}, DType::i64));
  argmax(x, out);
  CHECK(out.to_vector<std::int64_t>() == std::vector<std::int64_t>{1, 0, 1, 0, 0, 0});
  argmax(nan<T>({0, 3}), here(Tensor::empty({0}, DType::i64)));
  const Tensor index = here(Tensor::zeros({}, DType::i64));
  argmax(of_values<T>({4}, {1, 2, 7, 3}), index);
  CHECK(index.item() == 2);
}

TEST_CASE_TEMPLATE("argmax finds the largest of rows of any length" *
                       doctest::test_suite("not-late"),
                   T, float, double) {
  for (const auto& [rows, columns] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 1},
                                                          {300, 1},
                                                          {70, 7},
                                                          {40, 8},
                                                          {9, 129},
                                                          {3, 1024},
                                                          {2, 1025},
                                                          {1, 5001},
                                                          {2, 40'001}}) {
    CAPTURE_BINDING(rows);
    CAPTURE_BINDING(columns);
    Values values(static_cast<std::size_t>(rows * columns));
    std::vector<std::int64_t> expected;
    for (std::int64_t row = 0; row < rows; ++row) {
      double* const of_row = values.data() + row * columns;
      for (std::int64_t i = 0; i < columns; ++i) of_row[i] = value_at(row * columns + i);
      // The largest twice, in places that wander over the row; in every third row, NaN.
      const std::int64_t at = row * 11 % columns, again = (at + columns / 2) % columns;
      of_row[at] = of_row[again] = row % 3 == 2 ? std::nan("") : 5;
      expected.push_back(std::min(at, again));
    }
    const Tensor x = of_values<T>({rows, columns}, values);
    const Tensor out = here(Tensor::zeros({rows}, DType::i64));
    argmax(x, out);
    CHECK(out.to_vector<std::int64_t>() == expected);
    argmax(shifted<T>(x), out);
    CHECK(out.to_vector<std::int64_t>() == expected);
  }
}

TEST_CASE_TEMPLATE("argmax finds what is not finite at every place of a row" *
                       doctest::test_suite("not-late"),
                   T, float, double) {
  for (const std::int64_t columns : {1, 15, 16, 17, 32, 47, 64, 97}) {
    CAPTURE(columns);
    for (const double odd : {std::nan(""), std::numeric_limits<double>::infinity()}) {
      CAPTURE(odd);
      Values values(static_cast<std::size_t>(columns * columns));  // row i has it at i, and at 3 i
      std::vector<std::int64_t> expected;
      for (std::int64_t i = 0; i < columns; ++i) {
        double* const row = values.data() + i * columns;
        for (std::int64_t j = 0; j < columns; ++j) row[j] = value_at(i * columns + j);
        row[i] = row[i * 3 % columns] = odd;
        expected.push_back(std::min(i, i * 3 % columns));
      }
      const Tensor out = here(Tensor::zeros({columns}, DType::i64));
      argmax(of_values<T>({columns, columns}, values), out);
      CHECK(out.to_vector<std::int64_t>() == expected);
    }
  }
}

TEST_CASE_TEMPLATE("argmax and argmin along any dimension" * doctest::test_suite("not-late"), T,
                   float, double) {
  for (const Shape& shape :
       {Shape{7, 3}, Shape{2, 5000}, Shape{5, 1, 4}, Shape{2, 9, 515}, Shape{3, 700, 33},
        Shape{3, 5, 1025}, Shape{1, 1, 2}, Shape{40, 6, 1}}) {
    CAPTURE(shape.to_string());
    const Tensor host = Tensor::empty(shape, dtype_of<T>());
    // Whole numbers, so that there are equal ones, the largest far behind; NaN here and there.
    const bool with_nan = shape.rank() == 3;
    for (std::int64_t i = 0; i < host.numel(); ++i)
      host.data<T>()[i] = with_nan && i % 331 == 57
                              ? T(std::nan(""))
                              : std::floor(T(value_at(i) * 9) + T(i * 40 / host.numel()));
    for (int dim = 0; dim < shape.rank(); ++dim) {
      std::int64_t inner = 1;
      for (int d = dim + 1; d < shape.rank(); ++d) inner *= shape[d];
      const std::int64_t n = shape[dim];
      std::vector<std::int64_t> largest, smallest;
      for (std::int64_t at = 0; at < host.numel() / n; ++at) {
        const T* const x = host.data<T>() + at / inner * n * inner + at % inner;
        std::int64_t best = 0, least = 0;
        for (std::int64_t k = 1; k < n; ++k) {
          const T v = x[k * inner], most_so_far = x[best * inner], least_so_far = x[least * inner];
          if (v > most_so_far || (std::isnan(v) && !std::isnan(most_so_far))) best = k;
          if (v < least_so_far || (std::isnan(v) && !std::isnan(least_so_far))) least = k;
        }
        largest.push_back(best), smallest.push_back(least);
      }
      const Tensor out = here(Tensor::zeros(shape.with(dim, dim + 1, {}), DType::i64));
      argmax(here(host), out, dim);
      CHECK(out.to_vector<std::int64_t>() == largest);
      argmin(here(host), out, dim - shape.rank());
      CHECK(out.to_vector<std::int64_t>() == smallest);
    }
  }
}

TEST_CASE_TEMPLATE("all_finite finds one bad element anywhere", T, float, double) {
  const double bad_values[] = {std::nan(""), std::numeric_limits<double>::infinity(),
                               -std::numeric_limits<double>::infinity()};
  CHECK(all_finite(nan<T>({0})));
  CHECK(all_finite(of_values<T>({3}, Values(3, std::numeric_limits<T>::max()))));
  for (std::int64_t n : {1, 17, 5000}) {
    CHECK(all_finite(varied<T>({n})));
    for (std::int64_t at : {std::int64_t{0}, n / 2, n - 1})
      for (double bad : bad_values) {
        const Tensor x = varied<T>({n});
        x.slice(at, at + 1).fill(bad);
        CHECK_FALSE(all_finite(x));
        CHECK_FALSE(all_finite(shifted<T>(x)));
        CHECK(all_finite(x.slice(at + 1, n)));
      }
  }
}

TEST_CASE("several tensors share a flag of nonfinite elements") {
  const Tensor flag = here(Tensor::zeros({1}, DType::i32));
  find_nonfinite(varied<float>({100}), flag);
  CHECK(flag.item() == 0);
  find_nonfinite(nan<double>({1}), flag);
  CHECK(flag.item() == 1);
  find_nonfinite(varied<float>({100}), flag);
  find_nonfinite(nan<float>({0}), flag);
  CHECK(flag.item() == 1);
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
  CHECK_THROWS_WITH_AS(argmax(varied<float>({2, 0}), here(Tensor::zeros({2}, DType::i64))),
                       "[argmax] x has no dimension -1 to search: (2, 0)", ShapeError);
  CHECK_THROWS_AS(all_finite(here(Tensor::zeros({2}, DType::i64))), DTypeError);
}
