#include <doctest/doctest.h>

#include <utility>
#include <vector>

#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/parameter.h"
#include "lockstep/autograd/tape.h"
#include "support/device.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

std::vector<float> lerp_of(const std::vector<float>& x, const std::vector<float>& y,
                           double weight) {
  const Shape shape{static_cast<std::int64_t>(x.size())};
  return lerp(here(Tensor::of<float>(shape, x)), here(Tensor::of<float>(shape, y)), weight)
      .to_vector<float>();
}

}  // namespace

TEST_CASE("lerp reaches both ends exactly, however far apart they are") {
  const std::vector<float> x = {1e8f, 1, -3e30f, 1e-30f, 0, 7, -1e8f, 0.1f};
  const std::vector<float> y = {1, 1e8f, 2, 3, 1e-40f, 7, 1e8f, 1e20f};
  CHECK(lerp_of(x, y, 0) == x);
  CHECK(lerp_of(x, y, 1) == y);
}

// But for the rounding of a product, which PyTorch does not make.
TEST_CASE("lerp is PyTorch's for every weight") {
  // torch.lerp(torch.tensor([1e8, -2., 3.]), torch.tensor([1., 5., 3.]), w), PyTorch 2.15
  const std::vector<float> x = {1e8f, -2, 3}, y = {1, 5, 3};
  const std::vector<std::pair<double, std::vector<float>>> table = {
      {0.1, {90000000, -1.2999999523162842f, 3}},
      {0.3, {70000000, 0.10000008344650269f, 3}},
      {0.5, {50000000, 1.5f, 3}},
      {0.9, {10000003, 4.299999713897705f, 3}},
      {1.25, {-25000000, 6.75f, 3}},
      {-0.4, {140000000, -4.800000190734863f, 3}},
      {-0.75, {175000000, -7.25f, 3}},
  };
  for (const auto& [weight, expected] : table) {
    CAPTURE(weight);
    const std::vector<float> got = lerp_of(x, y, weight);
    for (std::size_t i = 0; i < expected.size(); ++i)
      CHECK(got[i] == doctest::Approx(expected[i]).epsilon(1e-6));
  }
}

TEST_CASE("lerp takes the weight as a number of the tensors' dtype, as PyTorch does") {
  const std::vector<float> x = {1, 1e8f, -2, 0.3f, -7e5f}, y = {16777218, 1, 5, 0.7f, 3};
  for (const double weight : {0.1, 0.3, 0.49999999, 0.500000001, 0.7, 0.9, 4.0 / 3, -1.0 / 3}) {
    CAPTURE(weight);
    CHECK(lerp_of(x, y, weight) == lerp_of(x, y, static_cast<float>(weight)));
  }
  CHECK(lerp_of({1}, {16777218}, 0.49999999) == std::vector<float>{8388610});  // from y: it is 1/2
}

TEST_CASE("gradients of lerp are 1 - weight and weight") {
  for (const double weight : {0.0, 0.25, 0.49, 0.5, 0.75, 1.0, 1.5, -0.75}) {
    CAPTURE(weight);
    const Parameter x(here(Tensor::of<double>({2}, {1e8, 3})), "x");
    const Parameter y(here(Tensor::of<double>({2}, {1, -4})), "y");
    Tape tape;
    tape.backward(sum(lerp(x, y, weight)));
    for (int i = 0; i < 2; ++i) {
      CHECK(x.gradient().to_vector<double>()[i] == doctest::Approx(1 - weight).epsilon(1e-15));
      CHECK(y.gradient().to_vector<double>()[i] == doctest::Approx(weight).epsilon(1e-15));
    }
  }
}

TEST_CASE("lerp of 16-bit operands is rounded once") {
  // In f16, 1000.5 - 1 is not a number.
  const Tensor x = cast(here(Tensor::of<float>({1}, {1000.5f})), DType::f16);
  const Tensor y = cast(here(Tensor::of<float>({1}, {1.0009765625f})), DType::f16);
  CHECK(cast(lerp(x, y, 1), DType::f32).item() == 1.0009765625);
}
