// Gradients of watched tensors over several backwards.

#include <doctest/doctest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/lanes.h"

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

TEST_CASE("a result on the way can be watched, and what it was made of gets its gradient") {
  const Parameter w(Tensor::from({3.0}), "w");
  {
    Tape tape;
    const Tensor h = tape.watch(w * 2.0);
    const Tensor loss = sum(square(h));
    tape.backward(loss, {.retain = true});
    CHECK(tape.gradient(h).item() == 12);
    CHECK(w.gradient().item() == 24);
    w.zero_grad();
    tape.backward(loss);
    CHECK(tape.gradient(h).item() == 12);  // of the last backward
    CHECK(w.gradient().item() == 24);
    CHECK_THROWS_WITH_AS(tape.backward(loss), doctest::Contains("already run backward"),
                         StateError);
    CHECK_THROWS_WITH_AS((void)tape.watch(loss), doctest::Contains("already run backward"),
                         StateError);
    CHECK(tape.gradient(h).item() == 12);
  }
  w.zero_grad();
  {
    Tape tape;
    const Tensor a = tape.watch(w), twice = tape.watch(a);
    tape.backward(sum(a * twice + w));
    CHECK(tape.gradient(twice).item() == 3);
    CHECK(tape.gradient(a).item() == 6);
    CHECK(w.gradient().item() == 7);
  }
  {
    const Tape outer;
    const Tensor y = w * 2.0;
    Tape inner;
    CHECK_THROWS_WITH_AS((void)inner.watch(y), doctest::Contains("which is not the current one"),
                         StateError);
  }
}

TEST_CASE("watching what layers hand on changes no gradient, with lanes or without") {
  const Tensor x = Tensor::from({{0.5, -1.0, 2.0}, {1.5, 0.25, -0.75}, {1.0, 1.0, -2.0}});
  const auto gradients = [&](bool watched, bool lanes) {
    const LaneScope scope(lanes ? std::make_shared<const Lanes>(3, 2, Shard{}) : nullptr);
    const Parameter a(Tensor::from({{0.5, -1.0, 2.0}, {1.5, 0.25, -0.75}}), "a");
    const Parameter b(Tensor::from({{1.0, 2.0}}), "b");
    Tape tape;
    const auto see = [&](const Tensor& y) { return watched ? tape.watch(y) : y; };
    const Tensor batch = lanes ? of_samples(x) : x, weight = see(a * 0.5);
    const Tensor h = see(tanh(linear(batch, weight)));
    tape.backward(mean(square(linear(h, see(b)))), lanes ? Weight(3, 3) : Weight());
    std::vector<double> all = a.gradient().to_vector<double>();
    for (const double g : b.gradient().to_vector<double>()) all.push_back(g);
    if (!watched) return all;
    // d a = 0.5 d weight
    const std::vector<double> of_weight = tape.gradient(weight).to_vector<double>();
    for (std::size_t i = 0; i < 6; ++i)
      CHECK(0.5 * of_weight[i] == doctest::Approx(all[i]).epsilon(1e-14));
    return all;
  };
  for (const bool lanes : {false, true}) {
    CAPTURE(lanes);
    CHECK(gradients(true, lanes) == gradients(false, lanes));
  }
}
