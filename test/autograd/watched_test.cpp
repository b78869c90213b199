// Gradients of watched tensors over several backwards.

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "lockstep/autograd/ops.h"

using namespace lockstep;

TEST_CASE("a watched tensor's gradient is that of the last backward that reached it") {
  // y = A tanh(x): dy_i / dx_j = A_ij (1 - tanh(x_j)^2)
  const Tensor a = Tensor::from({{1.0, -2.0, 0.5}, {3.0, 0.25, -1.0}, {0.0, 2.0, 4.0}});
  const std::vector<double> at = {0.3, -0.7, 1.1};
  Tape tape;
  const Tensor x = tape.watch(Tensor::from(at)), never = tape.watch(Tensor::from({1.0}));
  const Tensor y = matmul(a, tanh(x)), z = sum(square(x));
  for (int i = 0; i < 3; ++i) {
    tape.backward(select(y, 0, i), {.retain = true});
    const Tensor row = tape.gradient(x);
    for (int j = 0; j < 3; ++j) {
      const double t = std::tanh(at[static_cast<std::size_t>(j)]);
      CHECK(row.item({j}) == doctest::Approx(a.item({i, j}) * (1 - t * t)).epsilon(1e-14));
    }
  }
  const Tensor kept = tape.gradient(x);
  const double before = kept.item({0});
  tape.backward(z);
  for (int j = 0; j < 3; ++j)
    CHECK(tape.gradient(x).item({j}) == 2 * at[static_cast<std::size_t>(j)]);
  CHECK(kept.item({0}) == before);  // memory of its own
  CHECK_FALSE(tape.gradient(never).defined());
  // Within one backward, contributions add up, and a loss that does not reach it leaves it alone.
  tape.backward(sum(never * 2.0) + sum(never * 3.0));
  CHECK(tape.gradient(never).item() == 5);
  CHECK(tape.gradient(x).item({0}) == 2 * at[0]);
}
