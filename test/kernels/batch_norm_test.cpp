#include "lockstep/kernels/batch_norm.h"

#include "kernels/support.h"

using namespace lockstep;
using namespace lockstep::kernels;
using namespace lockstep::test;

namespace {

// Rows: none, one, fewer and more than a block's threads, several parts to merge. Columns: one,
// odd, a multiple of 16 bytes, more than a tile, more than the processor takes at a time (512).
const std::vector<Shape> shapes = {{0, 3},    {1, 1},    {2, 5},    {7, 4},    {31, 3},
                                   {33, 33},  {33, 40},  {128, 2},  {256, 8},  {257, 1},
                                   {700, 19}, {1100, 4}, {3, 1029}, {131, 513}};

double height_of(std::int64_t column) { return static_cast<double>(column % 37); }

/// x (N, C) with columns at different heights; `skip` elements into its memory.
template <class T>
Tensor matrix(const Shape& shape, int seed, int skip = 0) {
  Values values(static_cast<std::size_t>(skip), 0.0);
  for (std::int64_t i = 0; i < shape.numel(); ++i)
    values.push_back(value_at(i, seed) + height_of(i % shape[1]));
  const auto n = static_cast<std::int64_t>(values.size());
  return of_values<T>({n}, values).slice(skip, n).view(shape);
}

struct Columns {
  std::size_t count;
  Values values;
  double operator()(std::size_t row, std::size_t column) const {
    return values[row * count + column];
  }
  std::size_t rows() const { return values.size() / count; }
};
template <class T>
Columns columns_of(const Tensor& x) {
  return {static_cast<std::size_t>(x.size(1)), to_values<T>(x)};
}

/// The two-pass definition.
std::pair<Values, Values> naive_statistics(const Columns& x) {
  Values mean(x.count), m2(x.count);
  for (std::size_t c = 0; c < x.count; ++c) {
    long double sum = 0, squares = 0;
    for (std::size_t row = 0; row < x.rows(); ++row) sum += x(row, c);
    const long double center = x.rows() == 0 ? 0 : sum / static_cast<long double>(x.rows());
    for (std::size_t row = 0; row < x.rows(); ++row)
      squares += (x(row, c) - center) * (x(row, c) - center);
    mean[c] = static_cast<double>(center);
    m2[c] = static_cast<double>(squares);
  }
  return {mean, m2};
}

struct Statistics {
  explicit Statistics(const Tensor& x)
      : mean(nan<double>({x.size(1)})), m2(nan<double>({x.size(1)})) {
    batch_statistics(x, mean, m2);
  }
  Tensor inverse_std(const Tensor& x, double eps) const {
    const Tensor result = nan<double>({x.size(1)});
    batch_inverse_std(m2, static_cast<double>(x.size(0)), eps, result);
    return result;
  }
  Tensor mean, m2;
};

struct Sums {
  Sums(const Tensor& gradient, const Tensor& x, const Tensor& mean, const Tensor& inverse_std)
      : dy(nan<double>({x.size(1)})), dy_xhat(nan<double>({x.size(1)})) {
    batch_norm_sums(gradient, x, mean, inverse_std, dy, dy_xhat);
  }
  Tensor dy, dy_xhat;
};

const nlohmann::json& pytorch() {
  static const nlohmann::json numbers =
      nlohmann::json::parse(std::ifstream(LOCKSTEP_TEST_DATA "/batch_norm.json"));
  return numbers["cases"];
}

}  // namespace

TEST_CASE_TEMPLATE("statistics are those of the two-pass definition", T, float, double) {
  for (const Shape& shape : shapes) {
    CAPTURE(shape.to_string());
    const Tensor x = matrix<T>(shape, 1);
    const auto [mean, m2] = naive_statistics(columns_of<T>(x));
    const Statistics statistics(x);
    check_close<double>(statistics.mean, mean, 1e-14);
    check_close<double>(statistics.m2, m2, 1e-13);
    Values inverse_std;
    for (const double squares : m2) {
      const double rows = static_cast<double>(std::max<std::int64_t>(shape[0], 1));
      inverse_std.push_back(1 / std::sqrt(squares / rows + 0.01));
    }
    check_close<double>(statistics.inverse_std(x, 0.01), inverse_std, 1e-13);
  }
}

TEST_CASE("a mean far from zero costs the variance nothing") {
  // The sum of squares minus the square of the sum would lose all 16 digits.
  const std::int64_t rows = 600;
  Values values, centered;
  for (std::int64_t i = 0; i < 2 * rows; ++i) {
    centered.push_back(value_at(i, 3));
    values.push_back(value_at(i, 3) + (i % 2 == 0 ? 67108864.0 : -1024.0));  // exact in f64
  }
  const auto [mean, m2] = naive_statistics({2, centered});
  const Statistics statistics(of_values<double>({rows, 2}, values));
  check_close<double>(statistics.mean, {mean[0] + 67108864.0, mean[1] - 1024.0}, 1e-15);
  check_close<double>(statistics.m2, m2, 1e-8);
}

TEST_CASE_TEMPLATE("statistics of a constant column are exact, and of a NaN stay in theirs", T,
                   float, double) {
  Values values(300 * 5, T(0.1));
  values[777] = std::nan("");  // column 777 % 5 = 2
  const Statistics statistics(of_values<T>({300, 5}, values));
  const Values mean = to_values<double>(statistics.mean), m2 = to_values<double>(statistics.m2);
  for (std::size_t c = 0; c < 5; ++c) {
    CHECK(std::isnan(mean[c]) == (c == 2));
    CHECK(std::isnan(m2[c]) == (c == 2));
    if (c == 2) continue;
    CHECK(mean[c] == static_cast<double>(T(0.1)));
    CHECK(m2[c] == 0);
  }
}

TEST_CASE("merged parts are the whole") {
  const Tensor whole = varied<double>({21, 3}, 4).to({});
  const auto part = [&](std::int64_t begin, std::int64_t end) {
    const auto [mean, m2] = naive_statistics(columns_of<double>(whole.slice(begin, end)));
    return std::pair{Tensor::of<double>({3}, mean), Tensor::of<double>({3}, m2)};
  };
  const auto [mean, m2] = part(0, 0);
  const std::int64_t cuts[] = {0, 5, 5, 6, 21};  // one of them empty
  for (int k = 0; k < 4; ++k) {
    const auto [other_mean, other_m2] = part(cuts[k], cuts[k + 1]);
    merge_statistics(static_cast<double>(cuts[k]), mean, m2,
                     static_cast<double>(cuts[k + 1] - cuts[k]), other_mean, other_m2);
  }
  const auto [expected_mean, expected_m2] = naive_statistics(columns_of<double>(whole));
  check_close<double>(mean, expected_mean, 1e-15);
  check_close<double>(m2, expected_m2, 1e-14);
}

TEST_CASE_TEMPLATE("normalization and its gradient follow their formulas", T, float, double) {
  for (const Shape& shape : shapes)
    for (const bool affine : {true, false}) {
      CAPTURE(shape.to_string());
      CAPTURE(affine);
      const std::int64_t n = shape[1];
      const Tensor x = matrix<T>(shape, 1), dy = matrix<T>(shape, 2);
      const Tensor weight = affine ? varied<T>({n}, 3) : Tensor();
      const Tensor bias = affine ? varied<T>({n}, 4) : Tensor();
      // Any numbers will do for what the formulas take as given.
      const Tensor mean = varied<double>({n}, 5), inverse_std = varied<double>({n}, 6),
                   mean_dy = varied<double>({n}, 7), mean_dy_xhat = varied<double>({n}, 8);
      const Tensor y = nan<T>(shape), dx = nan<T>(shape), added = matrix<T>(shape, 9);
      batch_normalize(x, mean, inverse_std, weight, bias, y);
      batch_norm_dx(dy, x, mean, inverse_std, weight, mean_dy, mean_dy_xhat, dx, false);
      batch_norm_dx(dy, x, mean, inverse_std, weight, mean_dy, mean_dy_xhat, added, true);

      Values expected_y, expected_dx, expected_added;
      Values sum_dy(static_cast<std::size_t>(n)), sum_dy_xhat(static_cast<std::size_t>(n));
      for (std::int64_t i = 0; i < shape.numel(); ++i) {
        const std::int64_t c = i % n;
        const double height = height_of(c), gradient = value_at(i, 2) + height;
        const double xhat = (value_at(i, 1) + height - value_at(c, 5)) * value_at(c, 6);
        const double w = affine ? value_at(c, 3) : 1, b = affine ? value_at(c, 4) : 0;
        expected_y.push_back(xhat * w + b);
        expected_dx.push_back(w * value_at(c, 6) *
                              (gradient - value_at(c, 7) - xhat * value_at(c, 8)));
        expected_added.push_back(expected_dx.back() + value_at(i, 9) + height);
        sum_dy[static_cast<std::size_t>(c)] += gradient;
        sum_dy_xhat[static_cast<std::size_t>(c)] += gradient * xhat;
      }
      // Inputs beyond 32 are rounded to f32: an error of 2e-6 before the multiplications.
      check_close<T>(y, expected_y, tolerance<T>(2e-5, 1e-13));
      check_close<T>(dx, expected_dx, tolerance<T>(1e-4, 1e-13));
      check_close<T>(added, expected_added, tolerance<T>(1e-4, 1e-13));
      const Sums sums(dy, x, mean, inverse_std);
      check_close<double>(sums.dy, sum_dy, tolerance<T>(1e-6, 1e-13));
      check_close<double>(sums.dy_xhat, sum_dy_xhat, tolerance<T>(1e-5, 1e-12));
    }
}

TEST_CASE_TEMPLATE("the bits do not depend on where the operands begin", T, float, double) {
  for (const Shape& shape : {Shape{7, 4}, Shape{270, 12}, Shape{40, 33}}) {
    CAPTURE(shape.to_string());
    const auto run = [&](int skip) {
      const Tensor x = matrix<T>(shape, 1, skip), dy = matrix<T>(shape, 2, skip);
      const Tensor y = matrix<T>(shape, 3, skip), dx = matrix<T>(shape, 4, skip);
      const Statistics statistics(x);
      const Tensor inverse_std = statistics.inverse_std(x, 1e-5);
      const Sums sums(dy, x, statistics.mean, inverse_std);
      batch_normalize(x, statistics.mean, inverse_std, {}, {}, y);
      batch_norm_dx(dy, x, statistics.mean, inverse_std, {}, sums.dy, sums.dy_xhat, dx, true);
      return std::vector{to_values<double>(statistics.mean),
                         to_values<double>(statistics.m2),
                         to_values<double>(sums.dy),
                         to_values<double>(sums.dy_xhat),
                         to_values<T>(y),
                         to_values<T>(dx)};
    };
    const auto aligned = run(0), apart = run(1);
    CHECK(aligned == apart);
  }
}

TEST_CASE_TEMPLATE("the whole is PyTorch's", T, float, double) {
  REQUIRE(pytorch().size() == 4);
  for (const auto& entry : pytorch()) {
    const std::int64_t rows = entry["rows"], columns = entry["columns"];
    const double eps = entry["eps"];
    CAPTURE(rows);
    const auto tensor = [&](const char* name) {
      const Values values = entry[name];
      const bool channels = static_cast<std::int64_t>(values.size()) == columns;
      return of_values<T>(channels ? Shape{columns} : Shape{rows, columns}, values);
    };
    const Tensor x = tensor("x"), weight = tensor("weight"), dy = tensor("dy");
    const Statistics statistics(x);
    const Tensor inverse_std = statistics.inverse_std(x, eps);
    const Tensor y = nan<T>(x.shape()), dx = nan<T>(x.shape());
    batch_normalize(x, statistics.mean, inverse_std, weight, tensor("bias"), y);
    const Sums sums(dy, x, statistics.mean, inverse_std);
    Values means[2];
    for (const double sum : to_values<double>(sums.dy))
      means[0].push_back(sum / static_cast<double>(rows));
    for (const double sum : to_values<double>(sums.dy_xhat))
      means[1].push_back(sum / static_cast<double>(rows));
    batch_norm_dx(dy, x, statistics.mean, inverse_std, weight,
                  of_values<double>({columns}, means[0]), of_values<double>({columns}, means[1]),
                  dx, false);

    Values variance;
    for (const double m2 : to_values<double>(statistics.m2))
      variance.push_back(m2 / static_cast<double>(rows));
    check_close<double>(statistics.mean, entry["mean"], 1e-14);
    check_close(variance, entry["variance"], 1e-11);  // around a mean of 4096
    check_close<T>(y, entry["y"], tolerance<T>(1e-6, 1e-11));
    check_close<double>(sums.dy, entry["dbias"], 1e-13);
    check_close<double>(sums.dy_xhat, entry["dweight"], 1e-11);
    check_close<T>(dx, entry["dx"], tolerance<T>(1e-6, 1e-11));
  }
}

TEST_CASE("batch normalization refuses what does not fit") {
  const Tensor x = varied<float>({4, 3}), channels = varied<double>({3}),
               wrong = varied<float>({3});
  CHECK_THROWS_WITH_AS(batch_statistics(wrong, channels, channels),
                       "[batch_statistics] x: expected 2 dimensions, got shape (3,)", ShapeError);
  CHECK_THROWS_WITH_AS(batch_statistics(x, wrong, channels),
                       "[batch_statistics] mean: expected f64, got f32", DTypeError);
  CHECK_THROWS_WITH_AS(batch_inverse_std(wrong, 4, 0, wrong),
                       "[batch_inverse_std] m2: expected f64, got f32", DTypeError);
  CHECK_THROWS_WITH_AS(batch_normalize(x, channels, channels, channels, {}, x.clone()),
                       "[batch_normalize] weight: expected f32, got f64", DTypeError);
  CHECK_THROWS_WITH_AS(
      batch_norm_sums(x, varied<float>({3, 4}), channels, channels, channels, channels),
      "[batch_norm_sums] x: expected shape (4, 3), got (3, 4)", ShapeError);
  CHECK_THROWS_WITH_AS(
      batch_norm_dx(x, x, channels, channels, {}, varied<double>({4}), channels, x.clone(), false),
      "[batch_norm_dx] mean_dy: expected shape (3,), got (4,)", ShapeError);
}
