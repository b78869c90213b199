// How accurate reductions are: far from 0, of many elements, of numbers at the ends of their range.
// Expected values are sums in long double, and closed forms.

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/support.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/tape.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
const double not_a_number = std::nan("");

/// A shape, and the dimensions along which it is reduced.
struct Pattern {
  Shape shape;
  Dims dims;
};

std::vector<Pattern> patterns() {
  return {{{}, Dims::all()},
          {{1}, 0},
          {{2}, 0},
          {{31}, 0},
          {{33}, Dims::all()},
          {{1'000'001}, 0},
          {{1000, 1000}, Dims::all()},
          {{7, 333}, 1},
          {{333, 7}, 0},
          {{1, 333}, 1},
          {{333, 1}, 0},
          {{1001, 33}, 0},
          {{2, 70'001}, 1},
          {{70'001, 2}, 0},
          {{3, 1025, 5}, 1},
          {{3, 5, 1025}, {0, 2}},
          {{129, 3, 65}, {0, 1}},
          {{5, 129, 3, 65}, {1, 3}},
          {{600, 513}, 0}};
}

/// What is to be known of the elements of one result.
struct Group {
  long double count = 0, sum = 0, magnitudes = 0, squares = 0, deviations = 0;
  long double mean() const { return sum / count; }
  long double variance() const { return deviations / (count - 1); }
};

template <class T>
std::vector<Group> groups(const Tensor& x, const Dims& dims) {
  const unsigned mask = dims.mask("groups", x.shape());
  const auto group_of = [&](std::int64_t i) {
    std::int64_t group = 0, stride = 1;
    for (int d = x.rank() - 1; d >= 0; i /= x.size(d), --d) {
      if ((mask >> d & 1) != 0) continue;
      group += i % x.size(d) * stride;
      stride *= x.size(d);
    }
    return static_cast<std::size_t>(group);
  };
  const std::vector<T> values = x.to_vector<T>();
  std::vector<Group> result;
  const auto each = [&](const auto& f) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::size_t group = group_of(static_cast<std::int64_t>(i));
      if (group >= result.size()) result.resize(group + 1);
      f(result[group], static_cast<long double>(values[i]));
    }
  };
  each([](Group& g, long double v) {
    g.count += 1, g.sum += v, g.magnitudes += std::abs(v), g.squares += v * v;
  });
  each([](Group& g, long double v) { g.deviations += (v - g.mean()) * (v - g.mean()); });
  return result;
}

template <class T>
Tensor far_from_0(const Shape& shape, double offset) {
  const Tensor x = Tensor::empty(shape, dtype_of<T>());
  for (std::int64_t i = 0; i < x.numel(); ++i)
    x.data<T>()[i] = static_cast<T>(offset + value_at(i));
  return here(x);
}

/// Half a unit in the last place of T, relative.
template <class T>
constexpr long double half_unit = std::numeric_limits<T>::epsilon() / 2.0L;

/// `bound` of a group is the largest error.
template <class T, class Value, class Bound>
void check_groups(const char* what, const Tensor& got, const std::vector<Group>& all,
                  const Value& value, const Bound& bound) {
  const std::vector<T> values = got.to_vector<T>();
  REQUIRE(values.size() == all.size());
  std::size_t worst = 0;
  long double excess = -1;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const long double off = std::abs(static_cast<long double>(values[i]) - value(all[i]));
    const long double over = std::isnan(values[i]) ? infinity : off - bound(all[i]);
    if (over > excess) excess = over, worst = i;
  }
  CAPTURE(what);
  CHECK_MESSAGE(excess <= 0, values[worst], " instead of ", static_cast<double>(value(all[worst])));
}

}  // namespace

TEST_CASE_TEMPLATE("sums, means, norms and variances are as accurate as they say", T, float,
                   double) {
  if (!on_cpu()) return;  // a GPU adds up in the elements' own dtype
  for (const auto& [shape, dims] : patterns())
    for (const double offset : {0.0, 1e3, 1e6}) {
      CAPTURE(shape.to_string());
      CAPTURE(offset);
      const Tensor x = far_from_0<T>(shape, offset);
      const std::vector<Group> all = groups<T>(x, dims);
      const auto of_sum = [](const Group& g) {  // reduce.h
        return half_unit<T> * std::abs(g.sum) * 1.0001L +
               (128 + std::log2(g.count)) * half_unit<double> * g.magnitudes;
      };
      const auto spread = [](const Group& g) { return std::sqrt(g.variance()); };
      check_groups<T>(
          "sum", sum(x, dims), all, [](const Group& g) { return g.sum; }, of_sum);
      check_groups<T>(
          "mean", mean(x, dims), all, [](const Group& g) { return g.mean(); },
          [&](const Group& g) { return of_sum(g) / g.count; });
      check_groups<T>(
          "norm", norm(x, dims), all, [](const Group& g) { return std::sqrt(g.squares); },
          [](const Group& g) {
            return (half_unit<T> * 1.0001L + 160 * half_unit<double>)*std::sqrt(g.squares);
          });
      if (all[0].count < 2) continue;
      // A deviation is rounded where the mean is subtracted, and so is its square.
      const auto of_deviations = (8 * half_unit<T> + 320 * half_unit<double>);
      check_groups<T>(
          "var", var(x, dims), all, [](const Group& g) { return g.variance(); },
          [&](const Group& g) { return of_deviations * g.variance(); });
      check_groups<T>("stdev", stdev(x, dims), all, spread,
                      [&](const Group& g) { return of_deviations * spread(g); });
    }
}

TEST_CASE_TEMPLATE("variances far from 0 do not depend on how far", T, float, double) {
  // 1e6 and 1e6 + 1 in turns: the mean has no place for its half in f32.
  for (const std::int64_t n : {2, 1000, 100'000}) {
    CAPTURE(n);
    const Tensor x = Tensor::empty({n}, dtype_of<T>());
    for (std::int64_t i = 0; i < n; ++i) x.data<T>()[i] = static_cast<T>(1'000'000 + i % 2);
    const Tensor here_x = here(x);
    const double close = on_cpu() ? 1e-6 : 1e-4;
    CHECK(var(here_x, Dims::all(), {.correction = 0}).item() ==
          doctest::Approx(0.25).epsilon(close));
    CHECK(stdev(here_x, Dims::all(), {.correction = 0}).item() ==
          doctest::Approx(0.5).epsilon(close));
    CHECK(mean(here_x).item() == doctest::Approx(1'000'000.5).epsilon(on_cpu() ? 4e-8 : 1e-6));
    Parameter parameter(here_x, "x");
    Tape tape;
    tape.backward(var(parameter, Dims::all(), {.correction = 0}));
    const std::vector<T> gradient = parameter.gradient().template to_vector<T>();
    for (std::size_t i = 0; i < 2; ++i)  // 2 (x - mean) / n
      CHECK(static_cast<double>(gradient[i]) * static_cast<double>(n) ==
            doctest::Approx(i == 0 ? -1 : 1).epsilon(close));
  }
}

TEST_CASE_TEMPLATE("equal elements have no variance", T, float, double) {
  for (const double value : {0.1, -1e6 / 3, 1e20, 5e-39})
    for (const std::int64_t n : {2, 3, 49, 1000, 100'003}) {
      CAPTURE(value);
      CAPTURE(n);
      const Tensor x = Tensor::full({n}, value, dtype_of<T>(), test_device());
      if (on_cpu()) {
        CHECK(stdev(x).item() == 0);
        CHECK(var(x).item() == 0);
        CHECK(norm(stdev(broadcast_to(unsqueeze(x, 1), {n, 3}), 0)).item() == 0);
        CHECK(norm(stdev(broadcast_to(x, {3, n}), 1)).item() == 0);
        CHECK(mean(x).item() == doctest::Approx(value).epsilon(tolerance<T>(1e-7, 1e-14)));
      } else {
        CHECK(stdev(x).item() <= 1e-6 * std::abs(value));
      }
    }
}

TEST_CASE_TEMPLATE("few elements, and every correction", T, float, double) {
  const auto of = [](const Values& values) {
    return of_values<T>({static_cast<std::int64_t>(values.size())}, values);
  };
  const auto same = [](double got, double expected) {
    CHECK((got == expected || (std::isnan(got) && std::isnan(expected))));
  };
  same(var(of({3})).item(), not_a_number);
  same(stdev(of({3})).item(), not_a_number);
  same(var(of({3}), Dims::all(), {.correction = 0}).item(), 0);
  same(stdev(of({3}), Dims::all(), {.correction = 0}).item(), 0);
  same(var(of({3, 5}), Dims::all(), {.correction = 0}).item(), 1);
  same(var(of({3, 5})).item(), 2);
  same(var(of({3, 5}), Dims::all(), {.correction = 2}).item(), infinity);
  same(var(of({3, 5}), Dims::all(), {.correction = 5}).item(), infinity);
  same(var(of({})).item(), not_a_number);
  same(sum(of({})).item(), 0);
  same(mean(of({})).item(), 0);
  same(norm(of({})).item(), 0);
}

TEST_CASE_TEMPLATE("reductions at the ends of the range", T, float, double) {
  const double large = std::numeric_limits<T>::max(), small = std::numeric_limits<T>::min();
  const auto row = [](const Values& values) {
    return of_values<T>({1, static_cast<std::int64_t>(values.size())}, values);
  };
  if (on_cpu()) {
    CHECK(mean(Tensor::full({1000}, 3e38, DType::f32)).item() == doctest::Approx(3e38));
    CHECK(mean(Tensor::full({10, 10}, 3e38, DType::f32), 0).to_vector<float>()[9] == 3e38f);
    CHECK(mean(Tensor::full({10, 10}, 3e38, DType::f32), 1).to_vector<float>()[9] == 3e38f);
    CHECK(stdev(row({1e20, -1e20})).item() == doctest::Approx(std::sqrt(2) * 1e20));
  }
  CHECK(norm(row({3e20, 4e20})).item() == doctest::Approx(5e20));
  CHECK(norm(row({3e-30, 4e-30})).item() == doctest::Approx(5e-30));
  CHECK(norm(row({infinity, 1})).item() == infinity);
  CHECK(std::isnan(norm(row({infinity, not_a_number})).item()));
  CHECK(amax(row({-infinity, -infinity}), 1).item() == -infinity);
  CHECK(amin(row({infinity, large}), 1).item() == doctest::Approx(large));
  CHECK(std::isnan(amin(row({1, not_a_number, 0}), 1).item()));
  CHECK(sum(row({infinity, 1})).item() == infinity);
  CHECK(std::isnan(sum(row({infinity, -infinity})).item()));

  const auto lse = [&](const Values& values) { return logsumexp(row(values), 1).item(); };
  CHECK(lse({1000, 1000}) == doctest::Approx(1000 + std::log(2)).epsilon(1e-7));
  CHECK(lse({-1000, -1000}) == doctest::Approx(-1000 + std::log(2)).epsilon(1e-7));
  CHECK(lse({large, large}) == doctest::Approx(large));
  CHECK(lse({small, -large}) == doctest::Approx(small));
  CHECK(lse({-infinity, 1}) == doctest::Approx(1));
  CHECK(lse({-infinity, -infinity}) == -infinity);
  CHECK(lse({infinity, 0}) == infinity);
  CHECK(lse({infinity, infinity}) == infinity);
  CHECK(lse({infinity, -infinity}) == infinity);
  CHECK(std::isnan(lse({not_a_number, 0})));
  CHECK(std::isnan(lse({infinity, not_a_number})));
  check_close<T>(logsumexp(nan<T>({2, 0}), 1), {-infinity, -infinity}, 0);
  CHECK(logsumexp(nan<T>({0, 2}), 1).numel() == 0);
}

TEST_CASE_TEMPLATE("logsumexp of rows of any length", T, float, double) {
  for (const std::int64_t n : {1, 2, 15, 16, 17, 1000, 33'001})
    for (const double offset : {0.0, 1e3, -1e6}) {
      CAPTURE(n);
      CAPTURE(offset);
      const Tensor x = far_from_0<T>({2, n}, offset);
      const std::vector<T> values = x.to_vector<T>();
      Values expected;
      for (std::int64_t i = 0; i < 2; ++i) {
        long double total = 0;
        for (std::int64_t j = 0; j < n; ++j)
          total += std::exp(static_cast<long double>(values[static_cast<std::size_t>(i * n + j)]) -
                            static_cast<long double>(offset));
        expected.push_back(static_cast<double>(std::log(total)) + offset);
      }
      const double close = tolerance<T>(2e-7, 4e-15);  // of y, or of 1
      check_close<T>(logsumexp(x, 1), expected, close);
      check_close<T>(logsumexp(transpose(x), 0), expected, close);
      check_close<T>(logsumexp(x, 1, keepdim), expected, close);
    }
}

TEST_CASE("cumulative sums of f32 are rounded once") {
  const std::int64_t n = 100'001;
  const Tensor x = far_from_0<float>({n}, 1e3);
  const std::vector<float> sums = cumsum(x, 0).to_vector<float>(), values = x.to_vector<float>();
  double total = 0;
  std::int64_t different = 0;
  for (std::size_t i = 0; i < sums.size(); ++i)
    different += sums[i] != static_cast<float>(total += static_cast<double>(values[i]));
  CHECK(different == 0);
}

TEST_CASE_TEMPLATE("rows are normalized wherever they lie", T, float, double) {
  for (const std::int64_t n : {2, 31, 1000})
    for (const double offset : {0.0, 1e3, 1e6}) {
      CAPTURE(n);
      CAPTURE(offset);
      const Tensor x = far_from_0<T>({3, n}, offset);
      const std::vector<Group> all = groups<T>(x, 1);
      const std::vector<T> values = x.to_vector<T>();
      Values centered, scaled;
      for (std::size_t i = 0; i < values.size(); ++i) {
        const Group& g = all[i / static_cast<std::size_t>(n)];
        const auto v = static_cast<long double>(values[i]);
        centered.push_back(
            static_cast<double>((v - g.mean()) / std::sqrt(g.deviations / g.count + 1e-5L)));
        scaled.push_back(static_cast<double>(v / std::sqrt(g.squares / g.count + 1e-5L)));
      }
      check_close<T>(layer_norm(x), centered, tolerance<T>(1e-6, 1e-9));
      check_close<T>(rms_norm(x, {}, 1e-5), scaled, tolerance<T>(1e-6, 1e-14));
    }
}

TEST_CASE_TEMPLATE("the mean of squares of many elements", T, float, double) {
  const std::int64_t n = on_cpu() ? 5'000'001 : 50'001;
  const Tensor x = far_from_0<T>({n}, 0.1), y = Tensor::zeros({n}, dtype_of<T>(), test_device());
  long double total = 0, lost = 0;  // Kahan's sum
  for (const T value : x.to_vector<T>()) {
    const long double square = static_cast<long double>(value) * static_cast<long double>(value);
    const long double next = total + (square - lost);
    lost = (next - total) - (square - lost);
    total = next;
  }
  const auto expected = static_cast<double>(total / n);
  // One after the other, f64's would be off by 20 units.
  const double close = tolerance<T>(0.5001, 3) * std::numeric_limits<T>::epsilon();
  CHECK(std::abs(mse(x, y).item() / expected - 1) <= close);
  CHECK(std::abs(huber(x, y, 9).item() / expected - 0.5) <= close);
}

TEST_CASE_TEMPLATE("huber at the ends of delta and of differences", T, float, double) {
  const Values differences = {0, 0.5, -1, 2, 1e18, -infinity, not_a_number};
  const auto n = static_cast<std::int64_t>(differences.size());
  const auto expected = [](double d, double delta) {
    const double size = std::abs(d);
    return size <= delta ? size * size / 2 : delta * (size - delta / 2);
  };
  const auto same = [](const std::string& what, double got, double wanted) {
    const bool alike = got == doctest::Approx(wanted).epsilon(1e-6) || got == wanted ||
                       (std::isnan(got) && std::isnan(wanted));
    CHECK_MESSAGE(alike, what, ": ", got, " instead of ", wanted);
  };
  for (const double delta : {1e-3, 1.0, 1e30, 1e300, infinity}) {
    CAPTURE(delta);
    for (std::int64_t i = 0; i < n; ++i) {
      const double d = differences[static_cast<std::size_t>(i)];
      CAPTURE(d);
      const Tensor x = of_values<T>({1}, {d}), y = of_values<T>({1}, {0});
      for (const Reduction reduction : {Reduction::none, Reduction::sum, Reduction::mean}) {
        Parameter a(x, "x"), b(y, "y");
        Tape tape;
        const Tensor loss = huber(a, b, delta, reduction);
        same("loss", loss.item(), expected(d, delta));
        tape.backward(sum(loss));
        const auto slope = static_cast<double>(static_cast<T>(std::clamp(d, -delta, delta)));
        if (std::isfinite(d) || (std::isinf(d) && reduction == Reduction::mean)) {
          same("dx", a.gradient().item(), slope);
          same("dy", b.gradient().item(), -slope);
        }
      }
    }
  }
}
