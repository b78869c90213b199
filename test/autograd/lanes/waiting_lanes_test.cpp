// Gradients whose lanes wait until all have come: of parameters that are used several times, and of
// what is made of parameters alone. All numbers are small multiples of powers of two, so that a
// tape without lanes, which adds in another order, has the same bits.

#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/rows.h"
#include "lockstep/core/lanes.h"
#include "support/device.h"

using namespace lockstep;
using test::test_device;

namespace waiting_lanes {
namespace {

constexpr std::int64_t rows = 8, columns = 4;

Tensor whole_numbers(const Shape& shape, std::int64_t seed) {
  const Tensor result = Tensor::empty(shape);
  for (std::int64_t i = 0; i < result.numel(); ++i)
    result.data<float>()[i] = static_cast<float>((seed + i * i + 3 * i) % 7 - 3);
  return result.to(test_device());
}

using Use = std::function<Tensor(const Tensor& x, const Tensor& p)>;

/// What may become of a batch x and of p, which is a parameter or was made of one.
const std::vector<Use>& uses() {
  static const std::vector<Use> all{
      [](const Tensor& x, const Tensor& p) { return linear(x, p); },
      [](const Tensor& x, const Tensor& p) { return matmul(x, p); },
      [](const Tensor& x, const Tensor& p) { return x * select(p, 0, 1); },
      [](const Tensor& x, const Tensor& p) { return x * sum(square(p)); },
      [](const Tensor& x, const Tensor& p) { return linear(x, p * p); },
  };
  return all;
}

Tensor batch() { return of_samples(whole_numbers({rows, columns}, 1)); }

/// One backward; `lanes` 0: without them.
void run(const Parameter& p, int lanes, const std::function<Tensor(const Tensor&)>& loss) {
  LaneScope scope;
  if (lanes > 0) scope.set(std::make_shared<const Lanes>(rows, lanes, Shard{}));
  Tape tape;
  tape.backward(loss(batch()), Weight(rows, rows));
  CHECK(p.gradient_state() == GradientState::local);
}

bool same(const Tensor& a, const Tensor& b) {
  const Tensor x = a.detach().to(Device{}), y = b.detach().to(Device{});
  return x.shape() == y.shape() && std::memcmp(x.raw(), y.raw(), x.bytes()) == 0;
}

}  // namespace

TEST_CASE("waiting lanes: every use of what is made of parameters adds to those before it") {
  for (std::size_t i = 0; i < uses().size(); ++i)
    for (std::size_t k = 0; k < uses().size(); ++k)
      for (const bool itself : {false, true}) {
        CAPTURE(i);
        CAPTURE(k);
        CAPTURE(itself);
        const auto gradient = [&](int lanes) {
          const Parameter p(whole_numbers({columns, columns}, 2), "p");
          run(p, lanes, [&](const Tensor& x) {
            const Tensor made = itself ? Tensor(p) : p * 2.0;
            return mean(uses()[i](x, made) + uses()[k](x, made));
          });
          return p.gradient().clone();
        };
        const Tensor without = gradient(0);
        for (const int lanes : {1, 2, 8}) CHECK(same(gradient(lanes), without));
      }
}

TEST_CASE("waiting lanes: a step has nothing of a step with other lanes") {
  for (const Use& use : uses()) {
    CAPTURE(&use - uses().data());
    const auto loss = [&](const Parameter& p, const Tensor& x) {
      return mean(use(x, p) + use(x, p * 2.0));
    };
    const Parameter p(whole_numbers({columns, columns}, 2), "p");
    const Parameter fresh(p.value().clone(), "fresh");
    run(fresh, 0, [&](const Tensor& x) { return loss(fresh, x); });
    for (const int lanes : {8, 2, 1, 4, 8}) {
      CAPTURE(lanes);
      p.zero_grad();
      run(p, lanes, [&](const Tensor& x) { return loss(p, x); });
      CHECK(same(p.gradient(), fresh.gradient()));
    }
  }
}

TEST_CASE("waiting lanes: a backward that is run again has nothing of the first") {
  const LaneScope scope(std::make_shared<const Lanes>(rows, 4, Shard{}));
  for (const Use& use : uses()) {
    CAPTURE(&use - uses().data());
    const Parameter p(whole_numbers({columns, columns}, 2), "p");
    Tape tape;
    const Tensor loss = mean(use(batch(), p * 2.0) + use(batch(), p));
    tape.backward(loss, Weight(rows, rows), {.retain = true});
    const Tensor first = p.gradient().clone();
    p.zero_grad();
    tape.backward(loss, Weight(rows, rows), {.retain = true});
    CHECK(same(p.gradient(), first));
  }
}

TEST_CASE("waiting lanes: after a backward that failed the next one is as if it were the first") {
  const LaneScope scope(std::make_shared<const Lanes>(rows, 4, Shard{}));
  for (const Use& use : uses()) {
    CAPTURE(&use - uses().data());
    const auto gradient = [&](bool fails) {
      const Parameter p(whole_numbers({columns, columns}, 2), "p");
      Tape tape;
      const Tensor x = batch(), made = p * 2.0, first = use(x, made);
      const Tensor copy =
          record("failing", first.detach().clone(), {apart(first)}, [&](Gradients& g) {
            check<StateError>(!fails, "[failing] on purpose");
            g.pass(0, g.output());
          });
      const Tensor loss = mean(copy + use(x, made));  // whose part reaches `made` before the other
      const Tensor losses = lane_losses(loss).clone();
      if (fails) {
        CHECK_THROWS_WITH_AS(tape.backward(loss, Weight(rows, rows), {.retain = true}),
                             "[failing] on purpose", StateError);
        p.zero_grad();
        fails = false;
      }
      REQUIRE(lane_losses(loss).defined());
      CHECK(same(lane_losses(loss), losses));
      tape.backward(loss, Weight(rows, rows));
      return p.gradient().clone();
    };
    CHECK(same(gradient(true), gradient(false)));
  }
}

TEST_CASE("waiting lanes: a rank without samples adds zeros, where slopes are infinite, too") {
  const auto own = std::make_shared<const Lanes>(2, 4, Shard{1, 2});
  REQUIRE(own->rows() == 0);
  const LaneScope scope(own);
  const std::vector<std::function<Tensor(const Tensor&)>> functions{
      [](const Tensor& p) { return sqrt(p); },        [](const Tensor& p) { return log(p); },
      [](const Tensor& p) { return rsqrt(p); },       [](const Tensor& p) { return 1.0 / p; },
      [](const Tensor& p) { return pow(p, 0.25); },   [](const Tensor& p) { return p * p / p; },
      [](const Tensor& p) { return pow(p, p + 0.5); }};
  for (std::size_t i = 0; i < functions.size(); ++i) {
    CAPTURE(i);
    const Parameter p(Tensor::zeros({columns, columns}, DType::f32, test_device()), "p");
    Tape tape;
    const Tensor x = of_samples(Tensor::zeros({0, columns}, DType::f32, test_device()));
    const Tensor loss = mean(linear(x, functions[i](p)));
    CHECK(loss.item() == 0);
    tape.backward(loss, Weight(0, 2));
    CHECK(same(p.gradient(), zeros_like(p.value())));
  }
}

}  // namespace waiting_lanes
