// Gradients where a function has a corner or operands are equal: what PyTorch 2.15 gives.

#include <doctest/doctest.h>

#include <functional>
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
