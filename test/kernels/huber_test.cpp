// huber and logsumexp: kernels/loss.h.
#include <algorithm>

#include "kernels/support.h"
#include "lockstep/kernels/loss.h"

using namespace lockstep;
using namespace lockstep::kernels;
using namespace lockstep::test;

TEST_CASE_TEMPLATE("huber of many elements, and its gradient", T, float, double) {
  for (const std::int64_t n : {0, 1, 31, 1023, 50'001})
    for (const double delta : {0.5, 3.0, std::numeric_limits<double>::infinity()}) {
      CAPTURE(n);
      CAPTURE(delta);
      const Tensor x = varied<T>({n}), y = varied<T>({n}, 1), loss = nan<T>({}), dx = nan<T>({n});
      const Tensor three = Tensor::full({}, 3, dtype_of<T>(), test_device());
      const Values a = to_values<T>(x), b = to_values<T>(y);
      double expected = 0;
      Values gradient(a.size());
      for (std::size_t i = 0; i < a.size(); ++i) {
        const double d = a[i] - b[i], size = std::abs(d);
        expected +=
            (size <= delta ? d * d / 2 : delta * (size - delta / 2)) / static_cast<double>(n);
        gradient[i] = 3 * std::clamp(d, -delta, delta) / static_cast<double>(n);
      }
      huber(x, y, delta, loss);
      CHECK(loss.item() == doctest::Approx(expected).epsilon(tolerance<T>(1e-6, 1e-11)));
      huber_backward(three, x, y, delta, dx, false);
      check_close<T>(dx, gradient, tolerance<T>(1e-6, 1e-14));
      huber_backward(three, shifted<T>(x, 2), y, delta, dx, true);
      for (double& v : gradient) v *= 2;
      check_close<T>(dx, gradient, tolerance<T>(1e-6, 1e-14));
    }
}

TEST_CASE_TEMPLATE("logsumexp of finite and infinite rows", T, float, double) {
  const double inf = std::numeric_limits<double>::infinity(), nan_value = std::nan("");
  const Tensor y = nan<T>({6});
  logsumexp(
      of_values<T>({6, 2}, {1000, 1000, -inf, -inf, -inf, 3, inf, -inf, inf, inf, inf, nan_value}),
      y);
  check_close<T>(y, {1000 + std::log(2), -inf, 3, inf, inf, nan_value}, 1e-6);
  for (const std::int64_t columns : {1, 15, 17, 1000, 33'000}) {
    CAPTURE(columns);
    const Tensor x = varied<T>({3, columns}), out = nan<T>({3});
    const Values values = to_values<T>(x);
    Values expected;
    for (std::int64_t i = 0; i < 3; ++i) {
      double total = 0;
      for (std::int64_t j = 0; j < columns; ++j)
        total += std::exp(values[static_cast<std::size_t>(i * columns + j)]);
      expected.push_back(std::log(total));
    }
    logsumexp(x, out);
    check_close<T>(out, expected, tolerance<T>(1e-6, 1e-13));
  }
  logsumexp(nan<T>({2, 0}), y.slice(0, 2));
  check_close<T>(y.slice(0, 2), {-inf, -inf}, 0);
  logsumexp(nan<T>({0, 2}), y.slice(0, 0));
}
