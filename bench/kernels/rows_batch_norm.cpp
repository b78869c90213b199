// The kernels of kernels/batch_norm.h, one by one and as the forward and backward they make up.
#include <cmath>

#include "case.h"
#include "lockstep/kernels/batch_norm.h"
#include "sizes.h"

namespace bench {
namespace {

using namespace lockstep;
using Inputs = const std::vector<Values>&;

constexpr double tolerance = 1e-5, eps = 1e-5;

/// What one layer needs, forward and backward, and the inputs in the order in which the functions
/// below read them.
struct Layer {
  std::int64_t n, c;
  Tensor x, weight, bias, dy;    // f32
  Tensor mean, m2, inverse_std;  // f64 (C,): of x
  Tensor sum_dy, sum_dy_xhat;    // f64 (C,)
  Tensor y, dx;                  // f32

  Layer(const Size& size, Source& source)
      : n(size.dims[0]),
        c(size.dims[1]),
        x(source.normal({n, c})),
        weight(source.uniform({c}, 0.5, 2)),
        bias(source.normal({c})),
        dy(source.normal({n, c})),
        mean(source.empty({c}, DType::f64)),
        m2(source.empty({c}, DType::f64)),
        inverse_std(source.empty({c}, DType::f64)),
        sum_dy(source.normal({c}, DType::f64)),
        sum_dy_xhat(source.normal({c}, DType::f64)),
        y(source.empty({n, c})),
        dx(source.empty({n, c})) {
    statistics();
  }

  void statistics() const {
    kernels::batch_statistics(x, mean, m2);
    kernels::batch_inverse_std(m2, static_cast<double>(n), eps, inverse_std);
  }
  void normalize() const { kernels::batch_normalize(x, mean, inverse_std, weight, bias, y); }
  void sums() const { kernels::batch_norm_sums(dy, x, mean, inverse_std, sum_dy, sum_dy_xhat); }
  void input_gradient() const {
    kernels::batch_norm_dx(dy, x, mean, inverse_std, weight, sum_dy, sum_dy_xhat, dx, false);
  }
};

/// Of column j of x, the first input.
struct Moments {
  double mean, m2;
};
Moments moments(const Values& x, std::int64_t n, std::int64_t c, std::int64_t j) {
  double sum = 0, squares = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += x[i * c + j];
  const double mean = sum / static_cast<double>(n);
  for (std::int64_t i = 0; i < n; ++i) squares += (x[i * c + j] - mean) * (x[i * c + j] - mean);
  return {mean, squares};
}
double inverse_std(double m2, std::int64_t n) {
  return 1 / std::sqrt(m2 / static_cast<double>(n) + eps);
}

Case statistics(const Size& size, Source& source) {
  const Layer l(size, source);
  const auto mean = [n = l.n, c = l.c](Inputs in, std::int64_t j) {
    return moments(in[0], n, c, j).mean;
  };
  const auto m2 = [n = l.n, c = l.c](Inputs in, std::int64_t j) {
    return moments(in[0], n, c, j).m2;
  };
  return {.run = [l] { kernels::batch_statistics(l.x, l.mean, l.m2); },
          .inputs = {l.x},
          .outputs = {{l.mean, mean, 2 * l.n, tolerance}, {l.m2, m2, 2 * l.n, tolerance}}};
}

Case normalize(const Size& size, Source& source) {
  const Layer l(size, source);
  const auto expected = [c = l.c](Inputs in, std::int64_t i) {
    const std::int64_t j = i % c;
    return (in[0][i] - in[1][j]) * in[2][j] * in[3][j] + in[4][j];
  };
  return {.run = [l] { l.normalize(); },
          .inputs = {l.x, l.mean, l.inverse_std, l.weight, l.bias},
          .outputs = {{l.y, expected, 1, tolerance}}};
}

Case sums(const Size& size, Source& source) {
  const Layer l(size, source);
  const auto sum = [n = l.n, c = l.c](bool times_xhat) {
    return [=](Inputs in, std::int64_t j) {
      double total = 0;
      for (std::int64_t i = j; i < n * c; i += c)
        total += in[1][i] * (times_xhat ? (in[0][i] - in[2][j]) * in[3][j] : 1);
      return total;
    };
  };
  return {.run = [l] { l.sums(); },
          .inputs = {l.x, l.dy, l.mean, l.inverse_std},
          .outputs = {{l.sum_dy, sum(false), l.n, tolerance},
                      {l.sum_dy_xhat, sum(true), l.n, tolerance}}};
}

Case input_gradient(const Size& size, Source& source) {
  const Layer l(size, source);
  const auto expected = [c = l.c](Inputs in, std::int64_t i) {
    const std::int64_t j = i % c;
    const double xhat = (in[0][i] - in[2][j]) * in[3][j];
    return in[4][j] * in[3][j] * (in[1][i] - in[5][j] - xhat * in[6][j]);
  };
  return {.run = [l] { l.input_gradient(); },
          .inputs = {l.x, l.dy, l.mean, l.inverse_std, l.weight, l.sum_dy, l.sum_dy_xhat},
          .outputs = {{l.dx, expected, 1, tolerance}}};
}

/// x is read twice, unless it stays in a cache.
Case forward(const Size& size, Source& source) {
  const Layer l(size, source);
  const auto expected = [n = l.n, c = l.c](Inputs in, std::int64_t i) {
    const std::int64_t j = i % c;
    const Moments of_x = moments(in[0], n, c, j);
    return (in[0][i] - of_x.mean) * inverse_std(of_x.m2, n) * in[1][j] + in[2][j];
  };
  const auto run = [l] {
    l.statistics();
    l.normalize();
  };
  return {.run = run,
          .inputs = {l.x, l.weight, l.bias},
          .outputs = {{l.y, expected, 2 * l.n, tolerance}}};
}

/// As a layer calls them, but for dividing the (C,) sums by n, which says nothing about time.
Case backward(const Size& size, Source& source) {
  const Layer l(size, source);
  const auto expected = [n = l.n, c = l.c](Inputs in, std::int64_t i) {
    const std::int64_t j = i % c;
    double sum_dy = 0, sum_dy_xhat = 0;
    for (std::int64_t k = j; k < n * c; k += c) {
      sum_dy += in[1][k];
      sum_dy_xhat += in[1][k] * (in[0][k] - in[2][j]) * in[3][j];
    }
    const double xhat = (in[0][i] - in[2][j]) * in[3][j];
    return in[4][j] * in[3][j] * (in[1][i] - sum_dy - xhat * sum_dy_xhat);
  };
  const auto run = [l] {
    l.sums();
    l.input_gradient();
  };
  return {.run = run,
          .inputs = {l.x, l.dy, l.mean, l.inverse_std, l.weight},
          .outputs = {{l.dx, expected, l.n, tolerance}}};
}

}  // namespace

std::vector<Row> batch_norm_rows(Scale scale) {
  const std::vector<Size> sizes = matrices(scale);
  return {{"batch_statistics", sizes, 4, {}, statistics},
          {"batch_normalize", sizes, 8, {}, normalize},
          {"batch_norm_sums", sizes, 8, {}, sums},
          {"batch_norm_dx", sizes, 12, {}, input_gradient},
          {"batch_norm_forward", sizes, 12, {}, forward},
          {"batch_norm_backward", sizes, 20, {}, backward}};
}

}  // namespace bench
