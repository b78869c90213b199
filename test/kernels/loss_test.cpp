#include "lockstep/kernels/loss.h"

#include <algorithm>

#include "kernels/support.h"
#include "support/capture_binding.h"

using namespace lockstep;
using namespace lockstep::kernels;
using namespace lockstep::test;

namespace {

Shape shape_of(const nlohmann::json& entry) {
  return Shape{entry["shape"][0].get<std::int64_t>(), entry["shape"][1].get<std::int64_t>()};
}

Values doubled(Values values) {
  for (double& v : values) v *= 2;
  return values;
}

Tensor labels_of(const nlohmann::json& entry) {
  const std::vector<std::int64_t> labels = entry["labels"];
  return here(Tensor::of<std::int64_t>({static_cast<std::int64_t>(labels.size())}, labels));
}

/// 1 or 2, as a gradient that comes from above.
template <class T>
Tensor gradient_of(double value) {
  return Tensor::scalar(value, dtype_of<T>(), test_device());
}

/// What softmax and its relatives are by definition, in f64.
struct Naive {
  Values softmax, log_softmax, gradient;  ///< of log_softmax, where dy comes from above
  Values saved;                           ///< of cross-entropy, with these labels
  std::vector<std::int64_t> labels;
  double loss = 0;

  Naive(const Values& x, const Values& dy, std::int64_t columns) {
    const std::size_t width = static_cast<std::size_t>(columns), rows = x.size() / width;
    for (std::size_t row = 0; row < rows; ++row) {
      const std::size_t begin = row * width, end = begin + width;
      const std::size_t label = (row * 7 + 3) % width;
      const double largest = *std::max_element(&x[begin], &x[0] + end);
      double total = 0, total_dy = 0;
      for (std::size_t i = begin; i < end; ++i) total += std::exp(x[i] - largest);
      for (std::size_t i = begin; i < end; ++i) total_dy += dy[i];
      for (std::size_t i = begin; i < end; ++i) {
        log_softmax.push_back(x[i] - largest - std::log(total));
        softmax.push_back(std::exp(log_softmax.back()));
        gradient.push_back(dy[i] - softmax.back() * total_dy);
        saved.push_back(softmax.back() - (i == begin + label));
      }
      labels.push_back(static_cast<std::int64_t>(label));
      loss -= log_softmax[begin + label] / static_cast<double>(rows);
    }
  }
};

/// Elements that are about 1 / columns should be right to that scale.
template <class T>
void check_scaled(const Tensor& actual, Values expected, double columns, double tolerance) {
  Values values = to_values<T>(actual);
  for (double& v : values) v *= columns;
  for (double& v : expected) v *= columns;
  check_close(values, expected, tolerance);
}

}  // namespace

TEST_CASE_TEMPLATE("softmax and log-softmax are PyTorch's", T, float, double) {
  for (const auto& entry : reference()["functions"]["rows"]) {
    const Shape shape = shape_of(entry);
    CAPTURE(shape.to_string());
    const double close = tolerance<T>(1e-6, 1e-14);
    const Tensor x = of_values<T>(shape, entry["x"]), y = nan<T>(shape);
    softmax(x, y);
    check_close<T>(y, entry["softmax"], close);
    log_softmax(x, y);
    check_close<T>(y, entry["log_softmax"], close);

    const Tensor dy = of_values<T>(shape, entry["dy"]), dx = nan<T>(shape);
    log_softmax_backward(dy, y, dx, false);
    check_close<T>(dx, entry["log_softmax_dx"], 10 * close);
    log_softmax_backward(dy, y, dx, true);
    check_close<T>(dx, doubled(entry["log_softmax_dx"]), 10 * close);

    const Tensor in_place = x.clone();
    softmax(in_place, in_place);
    check_close<T>(in_place, entry["softmax"], close);
  }
}

TEST_CASE_TEMPLATE("cross-entropy is PyTorch's", T, float, double) {
  for (const auto& entry : reference()["functions"]["rows"]) {
    const Shape shape = shape_of(entry);
    CAPTURE(shape.to_string());
    const double close = tolerance<T>(1e-6, 1e-14);
    const Tensor x = of_values<T>(shape, entry["x"]), labels = labels_of(entry);
    const Tensor loss = nan<T>({}), saved = nan<T>(shape), dx = nan<T>(shape);
    cross_entropy(x, labels, loss, saved);
    CHECK(loss.item() == doctest::Approx(entry["loss"].get<double>()).epsilon(close));
    const Tensor one = gradient_of<T>(1), two = gradient_of<T>(2);
    cross_entropy_backward(one, saved, dx, false);
    check_close<T>(dx, entry["dlogits"], close);
    cross_entropy_backward(one, saved, dx, true);
    check_close<T>(dx, doubled(entry["dlogits"]), close);
    cross_entropy_backward(two, saved, saved, false);
    check_close<T>(saved, doubled(entry["dlogits"]), close);

    const Tensor in_place = x.clone();
    cross_entropy(in_place, labels, loss, in_place);
    cross_entropy_backward(one, in_place, dx, false);
    check_close<T>(dx, entry["dlogits"], close);

    const Tensor alone = nan<T>({});
    cross_entropy(x, labels, alone, Tensor());
    CHECK(alone.item() == loss.item());
  }
}

TEST_CASE_TEMPLATE("softmax of equal, extreme and broken rows", T, float, double) {
  const double inf = std::numeric_limits<double>::infinity(), nan_value = std::nan("");
  const Tensor x = of_values<T>({5, 4}, {7, 7,   7, 7, 1e30, -1e30, 0, 1e30, 1, nan_value, 2, 3,  //
                                         0, inf, 0, 0, -inf, 0,     0, -inf});
  const Tensor y = nan<T>({5, 4});
  softmax(x, y);
  const Values n(4, std::nan(""));
  check_close<T>(y.slice(0, 1), {0.25, 0.25, 0.25, 0.25}, 0);
  check_close<T>(y.slice(1, 2), {0.5, 0, 0, 0.5}, 1e-30);
  check_close<T>(y.slice(2, 3), n, 0);
  check_close<T>(y.slice(3, 4), n, 0);
  check_close<T>(y.slice(4, 5), {0, 0.5, 0.5, 0}, 1e-30);
}

TEST_CASE_TEMPLATE("rows of one value, however far from zero", T, float, double) {
  for (const std::int64_t columns : {1, 2, 3, 7, 15, 16, 17, 31, 33}) {
    for (const double value : {-1000.0, 1000.0, -3e4}) {
      CAPTURE(columns);
      CAPTURE(value);
      const auto n = static_cast<double>(columns);
      const Tensor x = of_values<T>({1, columns}, Values(static_cast<std::size_t>(columns), value));
      const Tensor y = nan<T>({1, columns}), loss = nan<T>({}),
                   label = here(Tensor::of<std::int64_t>({1}, {columns - 1}));
      const double close = tolerance<T>(4e-6, 1e-13);
      softmax(x, y);
      check_close<T>(y, Values(static_cast<std::size_t>(columns), 1 / n), close);
      log_softmax(x, y);
      check_close<T>(y, Values(static_cast<std::size_t>(columns), -std::log(n)), close);
      cross_entropy(x, label, loss, Tensor());
      CHECK(std::abs(loss.item() - std::log(n)) <= close);
    }
  }
}

TEST_CASE_TEMPLATE("rows of every length, wherever they begin", T, float, double) {
  // Where a GPU goes other ways: one thread, some lanes, a warp, a block per row; single elements
  // or several at once; more rows than a block takes; rows that one block does not hold.
  for (const auto& [rows, columns] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{300, 1},
                                                          {150, 7},
                                                          {2100, 10},
                                                          {65, 12},
                                                          {9, 33},
                                                          {33, 128},
                                                          {5, 131},
                                                          {5, 132},
                                                          {3, 259},
                                                          {3, 516},
                                                          {2, 2047},
                                                          {2, 4096},
                                                          {1, 8193},
                                                          {2, 16385},
                                                          {1, 16384},
                                                          {2, 33000}}) {
    CAPTURE_BINDING(rows);
    CAPTURE_BINDING(columns);
    const Shape shape{rows, columns};
    const double close = tolerance<T>(4e-6, 1e-13), width = static_cast<double>(columns);
    const Tensor x = varied<T>(shape), dy = varied<T>(shape, 1);
    const Naive naive(to_values<T>(x), to_values<T>(dy), columns);
    const Tensor labels = here(Tensor::of<std::int64_t>({rows}, naive.labels));
    const Tensor y = nan<T>(shape), loss = nan<T>({}), unaligned = shifted<T>(x);
    const auto same_bits = [](const Tensor& a, const Tensor& b) {
      check_close<T>(a, to_values<T>(b), 0);
    };

    softmax(x, y);
    check_scaled<T>(y, naive.softmax, width, close);
    softmax(unaligned, unaligned);
    same_bits(unaligned, y);

    log_softmax(x, y);
    check_close<T>(y, naive.log_softmax, close);
    unaligned.copy_from(x);
    log_softmax(unaligned, unaligned);
    same_bits(unaligned, y);

    const Tensor dx = nan<T>(shape);
    log_softmax_backward(dy, y, dx, false);
    check_close<T>(dx, naive.gradient, 10 * close);
    unaligned.copy_from(dx);
    log_softmax_backward(dy, y, unaligned, true);
    check_close<T>(unaligned, doubled(naive.gradient), 10 * close);

    cross_entropy(x, labels, loss, dx);
    CHECK(loss.item() == doctest::Approx(naive.loss).epsilon(close));
    check_scaled<T>(dx, naive.saved, width, close);
    unaligned.copy_from(x);
    const Tensor again = nan<T>({}), alone = nan<T>({});
    cross_entropy(unaligned, labels, alone, Tensor());
    cross_entropy(unaligned, labels, again, unaligned);
    same_bits(unaligned, dx);
    same_bits(again, loss);
    same_bits(alone, loss);
  }
}

TEST_CASE_TEMPLATE("infinities and NaN in long rows", T, float, double) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const std::int64_t columns : {600, 601, 33000, 33001}) {
    CAPTURE(columns);
    const std::int64_t masked = columns * 2 / 3;
    const auto softmax_with = [&](double special, std::int64_t begin, std::int64_t end) {
      Values values(static_cast<std::size_t>(columns), 1.0);
      std::fill(values.begin() + begin, values.begin() + end, special);
      const Tensor y = nan<T>({1, columns});
      softmax(of_values<T>({1, columns}, values), y);
      return y;
    };
    Values rest(static_cast<std::size_t>(columns), 1 / static_cast<double>(columns - masked));
    std::fill(rest.begin(), rest.begin() + masked, 0.0);
    check_scaled<T>(softmax_with(-inf, 0, masked), rest, static_cast<double>(columns),
                    tolerance<T>(1e-6, 1e-14));
    const Values broken(static_cast<std::size_t>(columns), std::nan(""));
    check_close<T>(softmax_with(-inf, 0, columns), broken, 0);
    check_close<T>(softmax_with(inf, 5, 6), broken, 0);
    check_close<T>(softmax_with(std::nan(""), columns - 1, columns), broken, 0);
    check_close<T>(softmax_with(std::nan(""), 0, masked), broken, 0);
  }
}

TEST_CASE_TEMPLATE("losses of nothing are 0, and so are their gradients", T, float, double) {
  const Tensor one = gradient_of<T>(1), loss = nan<T>({});
  const Tensor nothing = nan<T>({0, 10});
  cross_entropy(nothing, here(Tensor::empty({0}, DType::i64)), loss, nothing);
  CHECK(loss.item() == 0);
  cross_entropy_backward(one, nothing, nothing, false);
  loss.fill(std::nan(""));
  mse(nothing, nothing, loss);
  CHECK(loss.item() == 0);
  mse_backward(one, nothing, nothing, nothing, true);
  softmax(nothing, nothing);
  log_softmax(nothing, nothing);
  log_softmax_backward(nothing, nothing, nothing, false);
  const Tensor no_classes = nan<T>({3, 0});
  softmax(no_classes, no_classes);
  log_softmax(no_classes, no_classes);
}

TEST_CASE_TEMPLATE("mse is PyTorch's", T, float, double) {
  const auto& entry = reference()["functions"]["mse"];
  const Shape shape = shape_of(entry);
  const double close = tolerance<T>(1e-6, 1e-14);
  const Tensor x = of_values<T>(shape, entry["x"]), y = of_values<T>(shape, entry["y"]);
  const Tensor loss = nan<T>({}), dx = nan<T>(shape), one = gradient_of<T>(1);
  mse(x, y, loss);
  CHECK(loss.item() == doctest::Approx(entry["loss"].get<double>()).epsilon(close));
  mse_backward(one, x, y, dx, false);
  check_close<T>(dx, entry["dx"], close);
  mse_backward(one, x, y, dx, true);
  check_close<T>(dx, doubled(entry["dx"]), close);
  mse_backward(one, y, x, dx, true);  // the gradient of y is the opposite
  check_close<T>(dx, entry["dx"], close);
}

TEST_CASE_TEMPLATE("mse of many elements", T, float, double) {
  for (const std::int64_t n : {1, 1023, 16385, 50'001}) {
    CAPTURE(n);
    const Tensor x = varied<T>({n}), y = varied<T>({n}, 1), loss = nan<T>({}), dx = nan<T>({n});
    const Values a = to_values<T>(x), b = to_values<T>(y);
    double expected = 0;
    Values gradient(a.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      expected += (a[i] - b[i]) * (a[i] - b[i]) / static_cast<double>(n);
      gradient[i] = 3 * 2 * (a[i] - b[i]) / static_cast<double>(n);
    }
    mse(x, y, loss);
    CHECK(loss.item() == doctest::Approx(expected).epsilon(tolerance<T>(1e-6, 1e-11)));
    const Tensor other = nan<T>({});
    mse(shifted<T>(x), shifted<T>(y, 3), other);
    CHECK(other.item() == loss.item());
    mse_backward(gradient_of<T>(3), x, y, dx, false);
    check_scaled<T>(dx, gradient, static_cast<double>(n), tolerance<T>(1e-6, 1e-14));
    const Tensor sum = shifted<T>(dx);
    mse_backward(gradient_of<T>(3), shifted<T>(x, 2), y, sum, true);
    check_scaled<T>(sum, doubled(gradient), static_cast<double>(n), tolerance<T>(1e-6, 1e-14));
  }
}

TEST_CASE("a bad label on a GPU shows at the next wait") {
  if (on_cpu()) return;                               // there, it throws at once: see the next test
  for (const std::int64_t classes : {3, 4, 33000}) {  // several threads a row, one, several passes
    CAPTURE(classes);
    const Tensor x = varied<float>({3, classes}), loss = nan<float>({}),
                 saved = nan<float>({3, classes});
    const Naive naive(to_values<float>(x), to_values<float>(x), classes);
    const auto check_row = [&](std::int64_t row, bool good) {
      const Values& expected = good ? naive.saved : naive.softmax;
      const auto begin = expected.begin() + row * classes;
      check_close<float>(saved.slice(row, row + 1), Values(begin, begin + classes), 1e-6);
    };
    const std::vector<std::int64_t>& labels = naive.labels;
    for (const std::int64_t bad : {classes, std::int64_t{-1}, std::int64_t{-1} << 40}) {
      CAPTURE(bad);
      cross_entropy(x, here(Tensor::of<std::int64_t>({3}, {labels[0], bad, labels[2]})), loss,
                    saved);
      const std::string message =
          fmt::format("[cross_entropy] label {} of sample 1 is not one of the classes",
                      static_cast<std::int32_t>(bad));
      CHECK_THROWS_WITH_AS(loss.item(), message.c_str(), DataError);
      CHECK(std::isnan(loss.item()));  // complained of once
      check_row(0, true);
      check_row(1, false);
      check_row(2, true);
    }
  }
}

TEST_CASE("losses refuse what does not fit") {
  const Tensor x = varied<float>({3, 4}), loss = nan<float>({}), saved = nan<float>({3, 4});
  const auto with_labels = [&](std::initializer_list<std::int64_t> labels) {
    const Shape shape{static_cast<std::int64_t>(labels.size())};
    cross_entropy(x, here(Tensor::of<std::int64_t>(shape, labels)), loss, saved);
  };
  if (on_cpu()) {
    CHECK_THROWS_WITH_AS(with_labels({0, 4, 1}),
                         "[cross_entropy] label 4 of sample 1 is not in 0..3 (4 classes)",
                         DataError);
    CHECK_THROWS_WITH_AS(with_labels({0, 1, -1}),
                         "[cross_entropy] label -1 of sample 2 is not in 0..3 (4 classes)",
                         DataError);
    CHECK(std::isnan(loss.item()));
    check_close<float>(saved, Values(12, std::nan("")), 0);
  }
  CHECK_THROWS_WITH_AS(with_labels({0, 1}), "[cross_entropy] labels: expected shape (3,), got (2,)",
                       ShapeError);
  CHECK_THROWS_WITH_AS(cross_entropy(x, varied<float>({3}), loss, saved),
                       "[cross_entropy] labels: expected i64, got f32", DTypeError);
  const Tensor labels = here(Tensor::zeros({3}, DType::i64));
  CHECK_THROWS_AS(cross_entropy(x, labels, x, saved), ShapeError);
  CHECK_THROWS_AS(cross_entropy(x, labels, loss, loss), ShapeError);
  CHECK_THROWS_AS(mse(x, varied<float>({4, 3}), loss), ShapeError);
  CHECK_THROWS_AS(mse(x, varied<double>({3, 4}), loss), DTypeError);
  CHECK_THROWS_WITH_AS(huber(x, x, 0, loss), "[huber] delta 0: it must be positive", UsageError);
  CHECK_THROWS_AS(huber(x, varied<float>({4, 3}), 1, loss), ShapeError);
  CHECK_THROWS_AS(logsumexp(x, varied<float>({4})), ShapeError);
  CHECK_THROWS_AS(softmax(varied<float>({3}), varied<float>({3})), ShapeError);
  CHECK_THROWS_AS(log_softmax(x, varied<float>({3, 3})), ShapeError);
}
