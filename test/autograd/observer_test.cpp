// Observers of several parameters: each is told of a backward once.

#include <doctest/doctest.h>

#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/tape.h"

using namespace lockstep;

TEST_CASE("a backward that failed can be run again: nothing of it is left in the graph") {
  const Parameter a(Tensor::scalar(2, DType::f64), "a");
  bool fails = true;
  Tape tape;
  const Tensor x = scale(a, 5), y = scale(x, 7);
  const Tensor z = record("failing", x.detach().clone(), {&x}, [&](Gradients& g) {
    check<StateError>(!fails, "[failing] on purpose");
    g.pass(0, g.output());
  });
  const Tensor loss = add(z, scale(y, 3));  // y's part reaches x before the other fails
  CHECK_THROWS_WITH_AS(tape.backward(loss, {}, {.retain = true}), "[failing] on purpose",
                       StateError);
  CHECK(a.uses_left() == 0);
  a.zero_grad();
  fails = false;
  tape.backward(loss, {}, {.retain = true});
  CHECK(a.gradient().item() == 5 * (1 + 7 * 3));
}

TEST_CASE("a gradient to which a backward has added is no longer the same on all ranks") {
  const Parameter a(Tensor::scalar(2, DType::f64), "a");
  for (const GradientState before :
       {GradientState::nothing, GradientState::local, GradientState::synchronized}) {
    a.gradient_slot().fill(10);
    a.set_gradient_state(before);
    Tape tape;
    tape.backward(scale(a, 5));
    CHECK(a.gradient_state() == GradientState::local);
    CHECK(a.gradient().item() == (before == GradientState::nothing ? 5 : 15));
  }
}

TEST_CASE("observers: each hears of a backward once, however many parameters it shares") {
  struct Watcher : GradientObserver {
    int begins = 0, ready = 0, ends = 0;
    void backward_begins(const Contribution&) override { ++begins; }
    void gradient_ready(const Parameter&) override { ++ready; }
    void backward_ends() override { ++ends; }
  };
  for (const std::size_t watchers : {1u, 2u, 3u, 7u}) {
    CAPTURE(watchers);
    std::vector<Parameter> parameters;
    for (const char* name : {"a", "b", "c"})
      parameters.emplace_back(Tensor::scalar(2, DType::f64), name);
    std::vector<Watcher> all(watchers);
    std::vector<Observation> observations;
    for (std::size_t p = 0; p < parameters.size(); ++p)
      for (std::size_t w = 0; w < watchers; ++w)  // in another order on each parameter
        observations.push_back(parameters[p].observe(all[(w + p) % watchers]));
    Tape tape;
    tape.backward(mul(mul(parameters[0], parameters[1]), parameters[2]));
    for (const Watcher& watcher : all) {
      CHECK(watcher.begins == 1);
      CHECK(watcher.ready == 3);
      CHECK(watcher.ends == 1);
    }
  }
}
