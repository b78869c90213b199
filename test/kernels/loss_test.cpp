#include "lockstep/kernels/loss.h"

#include "kernels/support.h"
#include "lockstep/kernels/softmax.h"

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
  return Tensor::of<std::int64_t>({static_cast<std::int64_t>(labels.size())}, labels);
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
    const Tensor one = Tensor::scalar(1, dtype_of<T>()), two = Tensor::scalar(2, dtype_of<T>());
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
  const T inf = std::numeric_limits<T>::infinity(), nan_value = std::numeric_limits<T>::quiet_NaN();
  const Tensor x =
      Tensor::of<T>({5, 4}, {7, 7,   7, 7, 1e30f, -1e30f, 0, 1e30f, 1, nan_value, 2, 3,  //
                             0, inf, 0, 0, -inf,  0,      0, -inf});
  const Tensor y = nan<T>({5, 4});
  softmax(x, y);
  const Values n(4, std::nan(""));
  check_close<T>(y.slice(0, 1), {0.25, 0.25, 0.25, 0.25}, 0);
  check_close<T>(y.slice(1, 2), {0.5, 0, 0, 0.5}, 1e-30);
  check_close<T>(y.slice(2, 3), n, 0);
  check_close<T>(y.slice(3, 4), n, 0);
  check_close<T>(y.slice(4, 5), {0, 0.5, 0.5, 0}, 1e-30);
}

TEST_CASE_TEMPLATE("losses of nothing are 0, and so are their gradients", T, float, double) {
  const Tensor one = Tensor::scalar(1, dtype_of<T>()), loss = nan<T>({});
  const Tensor nothing = Tensor::empty({0, 10}, dtype_of<T>());
  cross_entropy(nothing, Tensor::empty({0}, DType::i64), loss, nothing);
  CHECK(loss.item() == 0);
  cross_entropy_backward(one, nothing, nothing, false);
  loss.fill(std::nan(""));
  mse(nothing, nothing, loss);
  CHECK(loss.item() == 0);
  mse_backward(one, nothing, nothing, nothing, true);
  softmax(nothing, nothing);
  log_softmax(nothing, nothing);
  log_softmax_backward(nothing, nothing, nothing, false);
  const Tensor no_classes = Tensor::empty({3, 0}, dtype_of<T>());
  softmax(no_classes, no_classes);
  log_softmax(no_classes, no_classes);
}

TEST_CASE_TEMPLATE("mse is PyTorch's", T, float, double) {
  const auto& entry = reference()["functions"]["mse"];
  const Shape shape = shape_of(entry);
  const double close = tolerance<T>(1e-6, 1e-14);
  const Tensor x = of_values<T>(shape, entry["x"]), y = of_values<T>(shape, entry["y"]);
  const Tensor loss = nan<T>({}), dx = nan<T>(shape), one = Tensor::scalar(1, dtype_of<T>());
  mse(x, y, loss);
  CHECK(loss.item() == doctest::Approx(entry["loss"].get<double>()).epsilon(close));
  mse_backward(one, x, y, dx, false);
  check_close<T>(dx, entry["dx"], close);
  mse_backward(one, x, y, dx, true);
  check_close<T>(dx, doubled(entry["dx"]), close);
  mse_backward(one, y, x, dx, true);  // the gradient of y is the opposite
  check_close<T>(dx, entry["dx"], close);
}

TEST_CASE("losses refuse what does not fit") {
  const Tensor x = varied<float>({3, 4}), loss = nan<float>({}), saved = nan<float>({3, 4});
  const auto with_labels = [&](std::initializer_list<std::int64_t> labels) {
    cross_entropy(x, Tensor::of<std::int64_t>({static_cast<std::int64_t>(labels.size())}, labels),
                  loss, saved);
  };
  CHECK_THROWS_WITH_AS(with_labels({0, 4, 1}),
                       "[cross_entropy] label 4 of sample 1 is not in 0..3 (4 classes)", DataError);
  CHECK_THROWS_WITH_AS(with_labels({0, 1, -1}),
                       "[cross_entropy] label -1 of sample 2 is not in 0..3 (4 classes)",
                       DataError);
  CHECK(std::isnan(loss.item()));
  check_close<float>(saved, Values(12, std::nan("")), 0);
  CHECK_THROWS_WITH_AS(with_labels({0, 1}), "[cross_entropy] labels: expected shape (3,), got (2,)",
                       ShapeError);
  CHECK_THROWS_WITH_AS(cross_entropy(x, Tensor::zeros({3}), loss, saved),
                       "[cross_entropy] labels: expected i64, got f32", DTypeError);
  CHECK_THROWS_AS(cross_entropy(x, Tensor::zeros({3}, DType::i64), x, saved), ShapeError);
  CHECK_THROWS_AS(cross_entropy(x, Tensor::zeros({3}, DType::i64), loss, loss), ShapeError);
  CHECK_THROWS_AS(mse(x, varied<float>({4, 3}), loss), ShapeError);
  CHECK_THROWS_AS(mse(x, varied<double>({3, 4}), loss), DTypeError);
  CHECK_THROWS_AS(softmax(varied<float>({3}), varied<float>({3})), ShapeError);
  CHECK_THROWS_AS(log_softmax(x, varied<float>({3, 3})), ShapeError);
}
