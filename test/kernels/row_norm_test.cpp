#include "kernels/support.h"
#include "lockstep/kernels/batch_norm.h"

using namespace lockstep;
using namespace lockstep::kernels;
using namespace lockstep::test;

namespace {

/// By the formulas of batch_norm.h, in f64.
struct NaiveRows {
  Values y, mean, inverse_std, dx, dweight;

  NaiveRows(const Values& x, const Values& dy, const Values& w, const Values& b,
            const RowNormConfig& config) {
    const std::size_t columns = w.size();
    const auto n = static_cast<double>(columns);
    dweight.assign(columns, 0.0);
    for (std::size_t begin = 0; begin < x.size(); begin += columns) {
      double m = 0, variance = 0, of_g = 0, of_g_xhat = 0;
      for (std::size_t j = 0; j < columns; ++j) m += config.centered ? x[begin + j] / n : 0;
      for (std::size_t j = 0; j < columns; ++j)
        variance += (x[begin + j] - m) * (x[begin + j] - m) / n;
      const double scale = 1 / std::sqrt(variance + config.eps);
      mean.push_back(m), inverse_std.push_back(scale);
      for (std::size_t j = 0; j < columns; ++j) {
        const double xhat = (x[begin + j] - m) * scale, g = dy[begin + j] * w[j];
        y.push_back(xhat * w[j] + b[j]);
        dweight[j] += dy[begin + j] * xhat;
        of_g += config.centered ? g / n : 0, of_g_xhat += g * xhat / n;
      }
      for (std::size_t j = 0; j < columns; ++j) {
        const double xhat = (x[begin + j] - m) * scale, g = dy[begin + j] * w[j];
        dx.push_back(scale * (g - of_g - xhat * of_g_xhat));
      }
    }
  }
};

}  // namespace

// For a GPU: single elements and whole accesses, one and several in each thread of a warp, of a
// block, and more than fit into registers; also more rows than are added at a time (256).
TEST_CASE_TEMPLATE("rows are normalized, and their gradients, by the formulas", T, float, double) {
  for (const Shape& shape : {Shape{1, 1}, Shape{3, 31}, Shape{1, 33}, Shape{300, 7}, Shape{3, 1025},
                             Shape{9, 64}, Shape{258, 20}, Shape{1, 16388}, Shape{1, 8193}})
    for (const RowNormConfig& config : {RowNormConfig{1e-5, true}, RowNormConfig{1e-3, false}}) {
      CAPTURE(shape.to_string());
      CAPTURE(config.centered);
      const std::int64_t rows = shape[0], columns = shape[1];
      const Tensor x = varied<T>(shape), dy = varied<T>(shape, 1), w = varied<T>({columns}, 2),
                   b = varied<T>({columns}, 3);
      const Values xs = to_values<T>(x), dys = to_values<T>(dy), ones(to_values<T>(w).size(), 1.0);
      const NaiveRows naive(xs, dys, to_values<T>(w), to_values<T>(b), config);
      const NaiveRows plain(xs, dys, ones, Values(ones.size(), 0.0), config);
      const Tensor y = nan<T>(shape), mean = nan<double>({rows}), scale = nan<double>({rows});
      const double close = tolerance<T>(2e-6, 1e-12) * (columns == 1 ? 400 : 1);
      row_normalize(x, w, b, config, y, mean, scale);
      check_close<T>(y, naive.y, close);
      check_close<double>(mean, naive.mean, 1e-6);
      check_close<double>(scale, naive.inverse_std, 1e-5);
      const Tensor again = shifted<T>(x);
      row_normalize(again, w, b, config, again, mean, scale);  // in place, elsewhere: the same bits
      check_close<T>(again, to_values<T>(y), 0);
      row_normalize(x, {}, {}, config, y, mean, scale);
      check_close<T>(y, plain.y, close);

      const Tensor dx = nan<T>(shape), dw = nan<T>({columns});
      const auto twice = [](Values values) {
        for (double& v : values) v *= 2;
        return values;
      };
      row_norm_dx(dy, x, mean, scale, w, config, dx, false);
      check_close<T>(dx, naive.dx, 4 * close);
      const Tensor elsewhere = shifted<T>(dy);
      row_norm_dx(elsewhere, x, mean, scale, w, config, elsewhere, false);  // and in place
      check_close<T>(elsewhere, to_values<T>(dx), 0);
      row_norm_dx(dy, x, mean, scale, w, config, dx, true);
      check_close<T>(dx, twice(naive.dx), 8 * close);
      row_norm_dx(dy, x, mean, scale, {}, config, dx, false);
      check_close<T>(dx, plain.dx, 4 * close);
      row_norm_dweight(dy, x, mean, scale, dw, false);
      check_close<T>(dw, naive.dweight, 4 * close);
      row_norm_dweight(dy, x, mean, scale, dw, true);
      check_close<T>(dw, twice(naive.dweight), 8 * close);
    }
}

TEST_CASE("a row is normalized to the same bits beside any others") {
  for (const std::int64_t n : {37, 64, 520, 16388}) {
    const Tensor x = varied<float>({5, n}), dy = varied<float>({5, n}, 1),
                 w = varied<float>({n}, 2);
    const Tensor y = nan<float>({5, n}), dx = nan<float>({5, n});
    const Tensor mean = nan<double>({5}), scale = nan<double>({5});
    row_normalize(x, w, {}, {}, y, mean, scale);
    row_norm_dx(dy, x, mean, scale, w, {}, dx, false);
    const Tensor y3 = nan<float>({1, n}), dx3 = nan<float>({1, n});
    const Tensor mean3 = nan<double>({1}), scale3 = nan<double>({1});
    row_normalize(x.slice(3, 4), w, {}, {}, y3, mean3, scale3);
    row_norm_dx(dy.slice(3, 4), x.slice(3, 4), mean3, scale3, w, {}, dx3, false);
    check_close<float>(y3, to_values<float>(y.slice(3, 4)), 0);
    check_close<float>(dx3, to_values<float>(dx.slice(3, 4)), 0);
  }
}

TEST_CASE("normalization of rows: nothing, and what does not fit") {
  const Tensor none = nan<float>({0, 3}), x = varied<float>({2, 3}), w = varied<float>({3});
  const Tensor no_rows = nan<double>({0}), two = nan<double>({2}), dw = nan<float>({3});
  row_normalize(none, w, {}, {}, none, no_rows, no_rows);
  row_norm_dx(none, none, no_rows, no_rows, w, {}, none, false);
  row_norm_dweight(none, none, no_rows, no_rows, dw, false);
  check_close<float>(dw, {0, 0, 0}, 0);
  CHECK_THROWS_WITH_AS(row_normalize(x, varied<float>({2}), {}, {}, x, two, two),
                       "[row_normalize] weight: expected shape (3,), got (2,)", ShapeError);
  CHECK_THROWS_AS(row_normalize(x, w, {}, {}, x, varied<float>({2}), two), DTypeError);
  CHECK_THROWS_AS(row_norm_dx(x, x, two, no_rows, w, {}, x, false), ShapeError);
}
