// Recomputed blocks: the same gradients as without, the same random numbers, readiness.

#include "lockstep/autograd/checkpoint.h"

#include <doctest/doctest.h>

#include <cmath>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/generator.h"
#include "support/device.h"

using namespace lockstep;

namespace {

Parameter weights(const std::string& name, double phase) {
  Tensor value = Tensor::empty({4, 4}, DType::f64);
  for (std::int64_t i = 0; i < 16; ++i)
    value.data<double>()[i] = std::sin(phase + static_cast<double>(i));
  return Parameter(value.to(test::test_device()), name);
}

Tensor input() {
  Tensor x = Tensor::empty({3, 4}, DType::f64);
  for (std::int64_t i = 0; i < 12; ++i) x.data<double>()[i] = std::cos(static_cast<double>(i));
  return x.to(test::test_device());
}

/// From the thread's sequential generator, where dropout draws from the counter-based one.
Tensor noise() {
  const Tensor drawn = Tensor::empty({3, 4}, DType::f64);
  default_generator().uniform(drawn, 0.5, 1.5);
  return drawn.to(test::test_device());
}

struct ThreeWeights {
  Parameter a = weights("a", 1), b = weights("b", 2), c = weights("c", 3);
  std::vector<Parameter> all() const { return {a, b, c}; }
};

/// Gradients of a, b, c and the input. `wrap(f, x)` is f(x), or that recomputed.
template <class Wrap>
std::vector<std::vector<double>> gradients(Wrap&& wrap) {
  const ThreeWeights m;
  manual_seed(5);
  Tape tape;
  const Tensor x = tape.watch(input());
  // Uses b twice, a within and outside; draws random numbers.
  const Tensor h = wrap(
      [&](const Tensor& y) { return tanh(matmul(dropout(matmul(y, m.a), 0.3), m.b)) * noise(); },
      tanh(matmul(x, m.c)));
  const Tensor z = dropout(matmul(h, m.a), 0.3);
  const Tensor loss = mean(z * z * wrap([&](const Tensor& y) { return matmul(y, m.b); }, h));
  tape.backward(loss);
  std::vector<std::vector<double>> result = {tape.gradient(x).to_vector<double>()};
  for (const Parameter& p : m.all()) result.push_back(p.gradient().to_vector<double>());
  return result;
}

struct Count : GradientObserver {
  std::vector<std::string> ready;
  void gradient_ready(const Parameter& parameter) override { ready.push_back(parameter.name()); }
};

}  // namespace

TEST_CASE("a recomputed block has the gradients of the block, dropout included, bit for bit") {
  const auto plain = gradients([](auto f, const Tensor& x) { return f(x); });
  const auto once = gradients([](auto f, const Tensor& x) { return checkpoint(f, x); });
  const auto nested = gradients([](auto f, const Tensor& x) {
    return checkpoint([f](const Tensor& y) { return checkpoint(f, y); }, x);
  });
  CHECK(plain == once);
  CHECK(plain == nested);
}

TEST_CASE("the second run leaves the random numbers that follow as they were") {
  const ThreeWeights m;
  const auto next = [&](bool recompute) {
    manual_seed(9);
    {
      Tape tape;
      const auto block = [&](const Tensor& x) { return dropout(matmul(x, m.a), 0.5) * noise(); };
      const Tensor y = recompute ? checkpoint(block, input()) : block(input());
      const Tensor between = dropout(noise(), 0.5);  // the second run does not follow the first
      tape.backward(sum(y));
    }
    return dropout(noise(), 0.5).to_vector<double>();
  };
  CHECK(next(true) == next(false));
}

TEST_CASE("a parameter is ready when its last contribution is added, once") {
  const ThreeWeights m;
  Count count;
  std::vector<Observation> observations;
  for (const Parameter& p : m.all()) observations.push_back(p.observe(count));
  Tape tape;
  const Tensor h = matmul(input(), m.c);
  const Tensor y = checkpoint([&](const Tensor& x) { return matmul(matmul(x, m.a), m.b); }, h);
  tape.backward(sum(matmul(y, m.a)));
  CHECK(count.ready == std::vector<std::string>{"b", "a", "c"});
}

TEST_CASE("blocks of several inputs, of none that wants a gradient, and without a tape") {
  const ThreeWeights m;
  const Tensor x = input();
  CHECK(checkpoint([&](const Tensor& y) { return matmul(y, m.a); }, x).to_vector<double>() ==
        matmul(x, m.a).to_vector<double>());
  Tape tape;
  const Tensor left = tape.watch(x), right = tape.watch(x), unused = tape.watch(x);
  const Tensor y =
      checkpoint([](const Tensor& p, const Tensor& q, const Tensor&) { return p * q * q; }, left,
                 right, unused);
  CHECK(checkpoint([](const Tensor& z) { return z * z; }, x).gradient_ref().tape ==
        GradientRef::nothing);
  tape.backward(sum(y));
  const auto values = x.to_vector<double>(), dl = tape.gradient(left).to_vector<double>(),
             dr = tape.gradient(right).to_vector<double>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    CHECK(dl[i] == doctest::Approx(values[i] * values[i]).epsilon(1e-14));
    CHECK(dr[i] == doctest::Approx(2 * values[i] * values[i]).epsilon(1e-14));
  }
  CHECK(tape.gradient(unused).to_vector<double>() == std::vector<double>(12, 0.0));
}

TEST_CASE(
    "what a block computed outside of it is refused; so is a second run that does otherwise") {
  const ThreeWeights m;
  Tape tape;
  const Tensor outside = matmul(input(), m.a);
  CHECK_THROWS_WITH_AS(checkpoint([&](const Tensor& x) { return x * outside; }, input()),
                       doctest::Contains("not the current one"), StateError);
  const auto differs = [&](const Parameter& first, const Parameter& second) {
    Tape inner;
    const Tensor y = checkpoint(
        [&](const Tensor& x) { return matmul(x, recomputing() ? second : first); }, input());
    inner.backward(sum(y));
  };
  CHECK_THROWS_WITH_AS(differs(m.a, m.b),
                       doctest::Contains("uses 'b', which the first run did not"), StateError);
  CHECK(m.a.uses_left() == 0);
  CHECK(m.b.uses_left() == 0);
  const auto less = [&] {
    Tape inner;
    const Tensor y = checkpoint(
        [&](const Tensor& x) {
          return recomputing() ? matmul(x, m.a) : matmul(matmul(x, m.a), m.b);
        },
        input());
    inner.backward(sum(y));
  };
  CHECK_THROWS_WITH_AS(less(), doctest::Contains("does not use 'b'"), StateError);
}

TEST_CASE("a rank that counts for nothing adds zeros from within a block, too") {
  const ThreeWeights m;
  m.a.value().fill(std::nan(""));
  m.a.place_gradient(m.a.value().clone());            // what lies there is not read
  const Tensor x = full_like(input(), std::nan(""));  // the gradient would be 0 x NaN
  Tape tape;
  tape.backward(sum(checkpoint([&](const Tensor& h) { return matmul(h, m.a); }, x)), Weight{0, 1});
  CHECK(m.a.gradient().to_vector<double>() == std::vector<double>(16, 0.0));
}
