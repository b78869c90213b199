// Values and gradients where a function has a corner or operands are equal, infinite or NaN: what
// PyTorch 2.15 gives. And what PyTorch users may expect to be otherwise.

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <type_traits>
#include <vector>

#include "lockstep/lockstep.h"
#include "support/device.h"

using namespace lockstep;
using test::here;

namespace {

/// d sum(y) / dx at these values.
std::vector<double> slopes(const std::vector<double>& at,
                           const std::function<Tensor(const Tensor&)>& y) {
  const auto n = static_cast<std::int64_t>(at.size());
  const Parameter x(here(Tensor::of<double>({n}, at)));
  Tape tape;
  tape.backward(sum(y(x)));
  return x.gradient().to_vector<double>();
}

using Slopes = std::vector<double>;

template <class T>
concept HasMax = requires(const Tensor& x, T second) {
  max(x, second);
};

}  // namespace

TEST_CASE("ties: equal elements share the gradient of amax, amin, max and min") {
  const std::vector<double> tied = {1, 3, 3, 2};
  CHECK(slopes(tied, [](const Tensor& x) { return amax(x, 0); }) == Slopes{0, 0.5, 0.5, 0});
  CHECK(slopes(tied, [](const Tensor& x) { return max(x); }) == Slopes{0, 0.5, 0.5, 0});
  CHECK(slopes({4, 1, 1, 1, 2}, [](const Tensor& x) { return amin(x, 0); }) ==
        Slopes{0, 1.0 / 3, 1.0 / 3, 1.0 / 3, 0});
  CHECK(slopes(tied, [](const Tensor& x) { return min(x); }) == Slopes{1, 0, 0, 0});
}

TEST_CASE("ties: the first of equal elements gets the gradient of max and min along a dimension") {
  CHECK(slopes({1, 3, 3, 2}, [](const Tensor& x) { return max(x, 0).values; }) ==
        Slopes{0, 1, 0, 0});
  CHECK(slopes({2, 1, 1}, [](const Tensor& x) { return min(x, 0).values; }) == Slopes{0, 1, 0});
  const Tensor x = here(Tensor::from({5.0, 7.0, 7.0}));
  CHECK(max(x, 0).indices.item() == 1);
  CHECK(argmax(x, 0).item() == 1);
}

TEST_CASE("ties: equal operands of maximum and minimum get half each") {
  const Tensor other = here(Tensor::from({1.0, 2.0, 3.0}));
  CHECK(slopes({2, 2, 2}, [&](const Tensor& x) { return maximum(x, other); }) == Slopes{1, 0.5, 0});
  CHECK(slopes({2, 2, 2}, [&](const Tensor& x) { return minimum(x, other); }) == Slopes{0, 0.5, 1});
}

TEST_CASE("ties: corners") {
  CHECK(slopes({-2, -1, 0, 1, 2}, [](const Tensor& x) { return clamp(x, -1, 1); }) ==
        Slopes{0, 0, 1, 0, 0});
  CHECK(slopes({-1, 0, 1}, [](const Tensor& x) { return abs(x); }) == Slopes{-1, 0, 1});
  CHECK(slopes({-1, 0, 1}, [](const Tensor& x) { return relu(x); }) == Slopes{0, 0, 1});
  CHECK(slopes({-1, 0, 1}, [](const Tensor& x) { return leaky_relu(x, 0.25); }) ==
        Slopes{0.25, 0.25, 1});
  CHECK(slopes({0, 0}, [](const Tensor& x) { return norm(x); }) == Slopes{0, 0});
  CHECK(slopes({-0.5, 0, 2.5}, [](const Tensor& x) { return round(x) + sign(x) + floor(x); }) ==
        Slopes{0, 0, 0});
}

TEST_CASE("corners: infinite operands, powers of 0, NaN") {
  constexpr double inf = std::numeric_limits<double>::infinity();
  const double nan = std::nan("");
  // Eighteen elements, so that full vectors and the rest meet them.
  const Tensor ends = reshape(broadcast_to(here(Tensor::from({-inf, inf})), {9, 2}), {-1});
  for (const DType dtype : {DType::f64, DType::f32}) {
    const Tensor x = cast(ends, dtype), sign = cast(ends > 0, dtype);
    CHECK(all(softplus(x) == where(ends > 0, x, 0.0)).item() == 1);
    CHECK(all(log_sigmoid(x) == where(ends > 0, 0.0, x)).item() == 1);
    CHECK(all(isnan(softplus(x * 0.0))).item() == 1);
  }
  CHECK(slopes({0, 1, 2}, [](const Tensor& x) { return pow(x, 0); }) == Slopes{0, 0, 0});
  CHECK(slopes({0, 0, 3}, [](const Tensor& x) {
          return pow(x, here(Tensor::from({0.0, 1.0, 0.0})));
        }) == Slopes{0, 1, 0});
  const auto got = slopes({1, nan, 2, nan}, [](const Tensor& x) { return max(x); });
  CHECK(got == Slopes{0, 0.5, 0, 0.5});
  const Tensor two = here(Tensor::from({2.0, 2.0, 2.0}));
  CHECK(slopes({1, nan, 3}, [&](const Tensor& x) { return maximum(x, two); }) == Slopes{0, 1, 1});
  CHECK(slopes({1, nan, 3}, [&](const Tensor& x) { return minimum(two, x); }) == Slopes{1, 1, 0});
}

// Else a step would be taken with a loss that is NaN.
TEST_CASE("corners: the gradient of NaN is NaN") {
  const double nan = std::nan("");
  const std::vector<std::function<Tensor(const Tensor&)>> functions{
      [](const Tensor& x) { return elu(x); },
      [](const Tensor& x) { return abs(x); },
      [](const Tensor& x) { return l1(x, zeros_like(x), Reduction::none); },
      [](const Tensor& x) { return huber(x, zeros_like(x), 1, Reduction::none); },
      [](const Tensor& x) { return huber(x, zeros_like(x), 1, Reduction::sum); },
      [](const Tensor& x) { return mse(x, zeros_like(x), Reduction::none); },
      [](const Tensor& x) { return bce_with_logits(x, zeros_like(x), Reduction::none); },
      [](const Tensor& x) { return gelu(x); }};
  for (std::size_t i = 0; i < functions.size(); ++i) {
    CAPTURE(i);
    CHECK(std::isnan(slopes({1, nan, -1}, functions[i])[1]));
  }
}

// log(1 + e^-|z|) is all that is left of a loss whose label is predicted well.
TEST_CASE("corners: binary cross-entropy has its digits on either side") {
  for (const double z : {0.0, 0.5, 3.0, 10.0, 15.0, 20.0, 80.0, 1e4}) {
    CAPTURE(z);
    const Tensor logits = cast(here(Tensor::from({z, -z, z, -z, z})), DType::f32);
    const Tensor targets = cast(here(Tensor::from({1.0, 0.0, 0.0, 1.0, 0.25})), DType::f32);
    const std::vector<float> seen =
        bce_with_logits(logits, targets, Reduction::none).to(Device{}).to_vector<float>();
    const double small = std::log1p(std::exp(-z)), large = z + small;
    const std::vector<double> wanted{small, small, large, large, 0.75 * z + small};
    for (std::size_t i = 0; i < wanted.size(); ++i)
      CHECK(seen[i] == doctest::Approx(wanted[i]).epsilon(3e-7).scale(1e-30));
    const Slopes got = slopes({z, -z}, [](const Tensor& x) {
      return bce_with_logits(x, here(Tensor::from({1.0, 0.25})), Reduction::none);
    });
    const double p = 1 / (1 + std::exp(-z));
    CHECK(got[0] == doctest::Approx(p - 1).epsilon(1e-9).scale(1));
    CHECK(got[1] == doctest::Approx(1 - p - 0.25).epsilon(1e-9).scale(1));
  }
}

TEST_CASE("corners: gradients of small norms, and of sums of exponentials far from 0") {
  const auto f32 = [](double scale, auto of) {
    return
        [scale, of](const Tensor& x) { return cast(of(cast(x, DType::f32)), DType::f64) * scale; };
  };
  const Slopes of_norm =
      slopes({3e-36, 4e-36}, f32(65536, [](const Tensor& x) { return norm(x); }));
  CHECK(of_norm[0] == doctest::Approx(0.6 * 65536));
  CHECK(of_norm[1] == doctest::Approx(0.8 * 65536));
  CHECK(slopes({0, 0}, [](const Tensor& x) { return norm(x); }) == Slopes{0, 0});
  for (const double far : {1e4, 1e8, -1e8})
    for (const double slope : slopes(std::vector<double>(17, far),
                                     f32(1, [](const Tensor& x) { return logsumexp(x, 0); })))
      CHECK(slope == doctest::Approx(1.0 / 17));
  // Powers whose square or root alone would leave the range.
  for (const auto& [x, c] : {std::pair{1e20, -2.0}, {5.45e-20, -2.0}, {2.08e-26, -1.5}}) {
    const double y = pow(cast(here(Tensor::from({x})), DType::f32), c).item();
    const double wanted = std::pow(static_cast<double>(static_cast<float>(x)), c);
    CHECK(y == doctest::Approx(wanted).epsilon(1e-4).scale(0));
  }
}

TEST_CASE("weights of classes are no parameters") {
  const Parameter w(here(Tensor::from({1.0, 2.0})), "w"), x(here(Tensor::ones({3, 2}, DType::f64)));
  const Tensor labels = here(Tensor::from({0, 1, 1}));
  Tape tape;
  CHECK_THROWS_WITH_AS(cross_entropy(x, labels, {.weight = w}),
                       doctest::Contains("no gradient flows into the weights"), StateError);
  CHECK_THROWS_AS(nll(log_softmax(x), labels, {.weight = w * 2.0}), StateError);
  CHECK_NOTHROW(cross_entropy(x, labels, {.weight = w.value()}));
}

TEST_CASE("corners: a repeated dividend, two vectors, empty batches, no dimensions") {
  CHECK(slopes({7, 8}, [](const Tensor& x) {
          return x % here(Tensor::from({{3.0, 5.0}, {4.0, 6.0}}));
        }) == Slopes{2, 2});
  const Tensor v = here(Tensor::from({1.0, 2.0, 3.0}));
  CHECK(matmul(v, v).shape() == Shape{});
  CHECK(matmul(v, v).item() == 14);
  CHECK_THROWS_AS(matmul(here(Tensor::zeros({0, 2, 4})), here(Tensor::zeros({0, 3, 5}))),
                  ShapeError);
  const Tensor deep = here(Tensor::ones({1, 2, 1, 2, 1, 3}));
  CHECK(amax(deep, {}).shape() == deep.shape());
  CHECK(sum(deep, {}).shape() == deep.shape());
}

TEST_CASE("what could be meant as PyTorch's, but is not, does not compile or is refused") {
  static_assert(!std::is_constructible_v<Dims, double>);
  static_assert(HasMax<int> && !HasMax<double>);
  const Tensor whole = here(Tensor::from({1, 2, 3}));  // i64: a fraction would be lost
  CHECK_THROWS_WITH_AS(
      whole * 0.5, "[mul] 0.5 beside a tensor of i64: cast(tensor, DType::f32) first", UsageError);
  CHECK_THROWS_WITH_AS(pow(whole, 2), "[pow] takes f32, f64, f16 or bf16, got i64", DTypeError);
  CHECK_THROWS_AS(clamp(whole, 0.5, 2), UsageError);
  CHECK_THROWS_AS(where(whole > 1, whole, 0.5), UsageError);
  CHECK_THROWS_AS(Tensor::full({2}, 1.5, DType::i64), UsageError);
  CHECK((whole * 2).to_vector<std::int64_t>() == std::vector<std::int64_t>{2, 4, 6});
}

TEST_CASE("the largest of integers that f32 does not tell apart") {
  for (const std::int64_t n : {std::int64_t{1} << 24, -(std::int64_t{1} << 31)}) {
    const Tensor x = here(Tensor::from({n, n + 1, n - 1, n}));
    CHECK(argmax(x, 0).item() == 1);
    CHECK(argmin(x, 0).item() == 2);
  }
}

TEST_CASE("isnan, isinf and isfinite: of every number one is true") {
  constexpr double inf = std::numeric_limits<double>::infinity();
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    CAPTURE(name_of(dtype));
    const Tensor x = cast(here(Tensor::from({0.0, -2.5, 3e4, inf, -inf, std::nan("")})), dtype);
    using Mask = std::vector<std::uint8_t>;
    CHECK(isfinite(x).to_vector<std::uint8_t>() == Mask{1, 1, 1, 0, 0, 0});
    CHECK(isinf(x).to_vector<std::uint8_t>() == Mask{0, 0, 0, 1, 1, 0});
    CHECK(isnan(x).to_vector<std::uint8_t>() == Mask{0, 0, 0, 0, 0, 1});
  }
}

TEST_CASE("allclose: both tolerances, infinite elements and NaN") {
  constexpr double inf = std::numeric_limits<double>::infinity();
  const auto vector = [](std::initializer_list<double> values) {
    return here(Tensor::from(values));
  };
  CHECK(allclose(vector({1, inf, -inf}), vector({1 + 9e-6, inf, -inf})));
  CHECK(!allclose(vector({1}), vector({1 + 2e-5})));
  CHECK(allclose(vector({0}), vector({1e-8})));
  CHECK(!allclose(vector({0}), vector({2e-8})));
  CHECK(!allclose(vector({inf}), vector({-inf})));
  CHECK(!allclose(vector({1}), vector({inf})));
  CHECK(!allclose(vector({std::nan("")}), vector({std::nan("")})));
  CHECK(allclose(vector({100}), vector({101}), 0.01));
  CHECK(allclose(vector({100}), vector({101}), 0, 1));
}

TEST_CASE("reshape: one size may be left open") {
  const Tensor x = here(Tensor::arange(24));
  CHECK(reshape(x, {2, -1, 3}).shape() == Shape{2, 4, 3});
  CHECK(reshape(here(Tensor::zeros({2, 0})), {2, -1}).shape() == Shape{2, 0});
  CHECK_THROWS_AS(reshape(x, {-1, 5}), ShapeError);
  CHECK_THROWS_AS(reshape(x, {-1, -1}), ShapeError);
  CHECK_THROWS_AS(reshape(x, {0, -1}), ShapeError);
  CHECK_THROWS_AS(reshape(x, {-2, 12}), ShapeError);
}

TEST_CASE("in place: a parameter's value, by hand") {
  const Parameter w(here(Tensor::from({1.0, 2.0})));
  {
    Tape tape;
    tape.backward(sum(w * w));
    w.value() -= 0.25 * w.gradient();
  }
  CHECK(w.value().to_vector<double>() == std::vector<double>{0.5, 1});
}

TEST_CASE("losses refuse other shapes, and rows that are ignored count for nothing") {
  constexpr double inf = std::numeric_limits<double>::infinity();
  const Tensor column = here(Tensor::zeros({3, 1})), row = here(Tensor::zeros({3}));
  for (const Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
    CHECK_THROWS_AS(mse(column, row, reduction), ShapeError);
    CHECK_THROWS_AS(l1(column, row, reduction), ShapeError);
    CHECK_THROWS_AS(huber(column, row, 1, reduction), ShapeError);
    CHECK_THROWS_AS(bce_with_logits(column, row, reduction), ShapeError);
  }
  const Tensor x = here(Tensor::from({{1.0, 2.0}}));
  CHECK_THROWS_AS(layer_norm(x, here(Tensor::ones({1, 2}, DType::f64))), ShapeError);
  CHECK_THROWS_AS(layer_norm(x, {}, here(Tensor::ones({1}, DType::f64))), ShapeError);
  CHECK_THROWS_AS(rms_norm(x, here(Tensor::ones({3}, DType::f64))), ShapeError);

  const Tensor labels = here(Tensor::from({-100, 1}));
  for (const double bad : {-inf, std::nan("")}) {
    const Tensor logits = here(Tensor::from({{bad, 0.0, 1.0}, {0.0, 1.0, 2.0}}));
    CHECK(cross_entropy(logits, labels, {.ignore_index = -100}).item() ==
          doctest::Approx(1.4076059644));
    CHECK(cross_entropy(logits, labels, {.label_smoothing = 0.3}).item() ==
          doctest::Approx(1.4076059644));
  }
  CHECK_THROWS_AS(cross_entropy(here(Tensor::zeros({2, 3})), labels,
                                {.weight = here(Tensor::ones({4})), .ignore_index = -100}),
                  ShapeError);
}

TEST_CASE("a constant has a spread of 0, and so has its gradient") {
  CHECK(slopes({2, 2, 2}, [](const Tensor& x) { return stdev(x); }) == Slopes{0, 0, 0});
}

TEST_CASE("cumulative sums of f32 stay right over millions, along either dimension") {
  const std::int64_t n = 3000000;
  CHECK(select(cumsum(here(Tensor::full({n}, 0.1)), 0), 0, -1).item() ==
        doctest::Approx(300000).epsilon(1e-7));
  const Tensor wide = cumsum(here(Tensor::full({100000, 67}, 0.1)), 0);
  for (const std::int64_t column : {0, 63, 64, 66})
    CHECK(wide.item({-1, column}) == doctest::Approx(10000).epsilon(1e-7));
}

TEST_CASE("what backward needs is not changed unnoticed: masks, indices, and saved results") {
  const Parameter p(here(Tensor::from({{1.0, 2.0}, {3.0, 4.0}})));
  const auto refused = [&](const Tensor& changed, const Tensor& y) {
    changed.detach().fill(0);
    CHECK_THROWS_AS(Tape::current()->backward(sum(y)), StateError);
  };
  Tape tape;
  const Tensor mask = here(Tensor::of<std::uint8_t>({2}, {1, 0}));
  const Tensor index = here(Tensor::from({1, 0})), each = here(Tensor::from({{1, 0}, {0, 1}}));
  refused(mask, where(mask, p, 0.0));
  refused(index, index_select(p, 0, index));
  refused(each, gather(p, 0, each));
  for (const Tensor& y :
       {softmax(p, 1), log_softmax(p, 1), norm(p, 1), amax(p, 1), pow(p, p), exp(p), div(p, p)})
    refused(y, y);
}

TEST_CASE("in place, an operand over the same memory is read as it was") {
  const Tensor a = here(Tensor::from({{1, 2}, {3, 4}, {5, 6}}));
  a += a.slice(0, 1).view({2});
  CHECK(a.to_vector<std::int64_t>() == std::vector<std::int64_t>{2, 4, 4, 6, 6, 8});
  a.slice(1, 3) += a.slice(0, 2);
  CHECK(a.to_vector<std::int64_t>() == std::vector<std::int64_t>{2, 4, 6, 10, 10, 14});
  a *= a;
  CHECK(a.to_vector<std::int64_t>() == std::vector<std::int64_t>{4, 16, 36, 100, 100, 196});
}

TEST_CASE("what a tape would not see is refused: changes in place, and copies") {
  const Parameter w(here(Tensor::from({1.0, 2.0})));
  const Tensor total = here(Tensor::zeros({}, DType::f64));
  Tape tape;
  const Tensor loss = sum(w * w);
  CHECK_THROWS_AS(total += loss, StateError);  // the gradient of loss would be lost
  CHECK_THROWS_AS(loss += total, StateError);
  CHECK_THROWS_AS(loss *= 2, StateError);
  CHECK_THROWS_AS(loss.clone(), StateError);
  CHECK(total.item() == 0);
  total += loss.detach();
  CHECK(total.item() == 5);
  const Tensor whole = here(Tensor::arange(3));
  const Tensor taken = index_select(w, 0, slice(whole, 0, 0, 2));
  CHECK_THROWS_AS(whole.fill(0.5), UsageError);  // and so nothing has changed
  tape.backward(loss + sum(taken));
  CHECK(w.gradient().to_vector<double>() == std::vector<double>{3, 5});
}
