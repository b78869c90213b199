// Every operation against numeric derivatives in f64, f32 against f64, and the test's device
// against the cpu.

#include "lockstep/autograd/ops.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "support/device.h"
#include "support/op_table.h"

using namespace lockstep;
using test::test_device;

namespace {

/// Element by element, relative to the larger of 1 and the largest magnitude.
void check_close(const std::vector<double>& got, const std::vector<double>& expected,
                 double tolerance) {
  REQUIRE(got.size() == expected.size());
  double largest = 1;
  for (const double x : expected) largest = std::max(largest, std::abs(x));
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(got[i] - expected[i]) / largest;
    worst = std::isnan(error) ? 1e300 : std::max(worst, error);
  }
  CHECK(worst <= tolerance);
}

std::vector<double> values(const Tensor& tensor) {
  return visit_floating("values", tensor.dtype(), [&](auto zero) {
    const auto elements = tensor.to_vector<decltype(zero)>();
    return std::vector<double>(elements.begin(), elements.end());
  });
}

}  // namespace

TEST_CASE("gradients of every operation agree with numeric ones" * doctest::test_suite("slow")) {
  for (const OpCase& op : op_table())
    for (const auto& shapes : op.shapes) {
      const GradcheckResult result =
          gradcheck(op.function, operands(op, shapes, DType::f64, test_device()));
      INFO(title(op, shapes), ": ", result.where);
      CHECK(result.worst < 1e-8);
    }
}

TEST_CASE("gradients of every operation add up where an operand is used twice" *
          doctest::test_suite("slow")) {
  for (const OpCase& op : op_table())
    for (const auto& shapes : op.shapes) {
      const auto twice = [&](std::span<const Tensor> x) { return op.function(x) + op.function(x); };
      const GradcheckResult result =
          gradcheck(twice, operands(op, shapes, DType::f64, test_device()));
      INFO(title(op, shapes), ": ", result.where);
      CHECK(result.worst < 1e-8);
    }
}

TEST_CASE("f32 values and gradients agree with f64") {
  for (const OpCase& op : op_table())
    for (const auto& shapes : op.shapes) {
      INFO(title(op, shapes));
      const auto single = results(op, shapes, DType::f32, test_device());
      const auto exact = results(op, shapes, DType::f64, test_device());
      for (std::size_t k = 0; k < single.size(); ++k) {
        REQUIRE(single[k].shape() == exact[k].shape());
        check_close(values(single[k]), values(exact[k]), 1e-4);
      }
    }
}

TEST_CASE("values and gradients on the device agree with the cpu's") {
  if (test::on_cpu()) return;
  for (const OpCase& op : op_table()) {
    auto all = op.shapes;
    for (const auto& shapes : large_shapes(op)) all.push_back(shapes);
    for (const auto& shapes : all)
      for (const DType dtype : {DType::f32, DType::f64}) {
        INFO(title(op, shapes), " ", name_of(dtype));
        const auto here = results(op, shapes, dtype, test_device());
        const auto expected = results(op, shapes, dtype, Device{});
        const double tolerance = device_tolerance(op) * (dtype == DType::f32 ? 1 : 1e-8);
        for (std::size_t k = 0; k < here.size(); ++k) {
          REQUIRE(here[k].device() == test_device());
          REQUIRE(here[k].shape() == expected[k].shape());
          check_close(values(here[k]), values(expected[k]), tolerance);
        }
      }
  }
}

TEST_CASE("gradcheck notices a wrong gradient") {
  // y = x^2 with a backward that forgets the factor 2.
  const auto wrong = [](std::span<const Tensor> x) {
    const Tensor value = x[0].detach();
    return record("wrong", mul(value, value), {&x[0]},
                  [value](Gradients& g) { g.pass(0, mul(g.output(), value)); });
  };
  const Tensor x = Tensor::of<double>({2}, {1.5, -2.0});
  CHECK(gradcheck(wrong, {x}).worst > 0.1);
  CHECK(x.to_vector<double>() == std::vector<double>{1.5, -2.0});  // as it was
}

TEST_CASE("gradcheck notices NaN in any element") {
  for (const std::size_t bad : {0u, 1u, 2u}) {
    const auto nan_at = [bad](std::span<const Tensor> x) {
      return record("nan", scale(x[0].detach(), 1), {&x[0]}, [bad](Gradients& g) {
        const Tensor gradient = g.output().clone();
        gradient.data<double>()[bad] = std::nan("");
        g.pass(0, gradient);
      });
    };
    const GradcheckResult result = gradcheck(nan_at, {Tensor::of<double>({3}, {1, 2, 3})});
    CHECK_FALSE(result.worst < 1e-8);
    CHECK(result.where.find(fmt::format("element {}", bad)) != std::string::npos);
  }
}

TEST_CASE("operands that do not fit are named with both values") {
  const Tensor a = Tensor::zeros({32, 64}), b = Tensor::zeros({63, 128});
  CHECK_THROWS_WITH_AS(matmul(a, b), doctest::Contains("(32, 64) x (63, 128)"), ShapeError);
  CHECK_THROWS_WITH_AS(add(a, b), doctest::Contains("(32, 64) and (63, 128)"), ShapeError);
  CHECK_THROWS_WITH_AS(add(a, Tensor::zeros({64}, DType::f64)),
                       doctest::Contains("[add] a is f32, but b is f64"), DTypeError);
  CHECK_THROWS_AS(linear(a, b), ShapeError);
  CHECK_THROWS_AS(mse(a, b), ShapeError);
  CHECK_THROWS_AS(reshape(a, {5}), ShapeError);
  CHECK_THROWS_AS(exp(Tensor::zeros({2}, DType::i64)), DTypeError);
  CHECK_THROWS_WITH_AS(mean(a == a), "[mean] takes f32, f64, f16 or bf16, got u8", DTypeError);
}
