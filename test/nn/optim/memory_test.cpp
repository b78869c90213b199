// The memory of a parameter may change after an optimizer was made: optimizers follow it, or say
// that they cannot. None goes on to step what nobody sees any more.

#include <doctest/doctest.h>

#include <functional>
#include <optional>

#include "lockstep/core/gpu/graph.h"
#include "lockstep/lockstep.h"
#include "support/device.h"
#include "support/expect.h"

using namespace lockstep;
using lockstep::test::expect;
using lockstep::test::expect_error;
using lockstep::test::test_device;

namespace {

#define ALL_OPTIMIZERS optim::SGD, optim::Adam, optim::AdamW, optim::RMSprop, optim::Lion

Parameter placed_parameter(const char* name, std::vector<float> values,
                           Device device = test_device()) {
  const auto n = static_cast<std::int64_t>(values.size());
  return Parameter(Tensor::of<float>({n}, std::move(values)).to(device), name);
}

std::vector<float> elements_of(const Parameter& p) { return p.value().to_vector<float>(); }

/// Five steps; `change(parameter)` after the second.
template <class O>
std::vector<float> ends_with(const std::function<void(const Parameter&)>& change) {
  const Parameter w = placed_parameter("w", {1, -2, 3});
  O optimizer({w}, {.lr = 0.05, .weight_decay = 0.1});
  for (int step = 0; step < 5; ++step) {
    if (step == 2) change(w);
    Tape tape;
    tape.backward(sum(w * w * w));
    optimizer.step();
    optimizer.zero_grad();
  }
  return elements_of(w);
}

Tensor elsewhere(const Parameter& p) { return Tensor::zeros(p.value().shape()).to(test_device()); }

}  // namespace

TEST_CASE_TEMPLATE("memory: optimizers follow values and gradients that were placed elsewhere", O,
                   ALL_OPTIMIZERS) {
  const std::vector<float> plain = ends_with<O>([](const Parameter&) {});
  CHECK(plain != std::vector<float>{1, -2, 3});
  CHECK(ends_with<O>([](const Parameter& w) { w.place_value(elsewhere(w)); }) == plain);
  CHECK(ends_with<O>([](const Parameter& w) { w.place_value({}); }) == plain);
  CHECK(ends_with<O>([](const Parameter& w) { w.place_gradient(elsewhere(w)); }) == plain);
}

TEST_CASE("memory: an average follows the value, and takes its place") {
  const Parameter w = placed_parameter("w", {1, -2, 3});
  optim::Ema ema({w}, 0.5);
  const Tensor memory = elsewhere(w);
  w.place_value(memory);
  memory.fill(5);
  ema.update();
  {
    const optim::Ema::Applied applied(ema);
    CHECK(memory.to_vector<float>() == std::vector<float>{3, 1.5, 4});
  }
  CHECK(elements_of(w) == std::vector<float>{5, 5, 5});
}

TEST_CASE("memory: under DDP the replicas stay equal, and end as without") {
  std::vector<float> plain;
  for (const bool placed : {false, true})
    run_threads(2, {}, [&](World& world) {
      const Parameter w = placed_parameter("w", {1, -2, 3}, {});
      dist::DistributedDataParallel ddp({w}, {}, world);
      optim::SGD optimizer({w}, {.lr = 0.05, .momentum = 0.9});
      for (int step = 0; step < 4; ++step) {
        if (step == 2 && placed) w.place_value(Tensor::zeros({3}));
        Tape tape;
        tape.backward((world.rank() + 0.5) * sum(w * w));
        optimizer.step();
        optimizer.zero_grad();
      }
      ddp.check_replicas();
      if (world.rank() > 0) return;
      if (!placed) plain = elements_of(w);
      expect(elements_of(w) == plain, "other bits");
    });
}

TEST_CASE("memory: a sharded optimizer, whose ranks share it, refuses other memory") {
  run_threads(2, {}, [](World& world) {
    const Parameter w = placed_parameter("w", {1, -2, 3, 4}, {}),
                    v = placed_parameter("v", {5, 6}, {});
    dist::DistributedDataParallel ddp({w, v}, {}, world);
    optim::Adam optimizer({w, v}, {.lr = 0.1});
    optimizer.shard(ddp);
    const auto backward = [&] {
      Tape tape;
      tape.backward(sum(w * w) + sum(v));
    };
    backward();
    optimizer.step();
    optimizer.zero_grad();
    v.place_value({});
    backward();
    expect_error<StateError>("[step] the value of 'v' was moved to other memory (place_value)",
                             [&] { optimizer.step(); });
  });
}

TEST_CASE_TEMPLATE("memory: a model that is moved to another device after the optimizer", O,
                   ALL_OPTIMIZERS) {
  if (test::on_cpu()) return;
  const Parameter w = placed_parameter("w", {1, -2, 3}, {});
  O optimizer({w}, {.lr = 0.05});
  w.move_to(test_device());
  Tape tape;
  tape.backward(sum(w * w));
  CHECK_THROWS_WITH_AS(optimizer.step(), doctest::Contains("Move the model first"), StateError);
  CHECK(elements_of(w) == std::vector<float>{1, -2, 3});
}

TEST_CASE("memory: a recorded step is recorded again when a value has been placed elsewhere") {
  const Parameter w = placed_parameter("w", {1, 2});
  optim::SGD optimizer({w}, {.lr = 0.5});
  StepGraph graph(
      [&] {
        optimizer.zero_grad();
        Tape tape;
        tape.backward(sum(w));
        optimizer.step();
      },
      test_device());
  for (int step = 0; step < 3; ++step) graph();
  CHECK(elements_of(w) == std::vector<float>{-0.5, 0.5});
  w.place_value(elsewhere(w));
  graph();
  CHECK(elements_of(w) == std::vector<float>{-1, 0});
}

TEST_CASE("memory: a model under DDP is not moved, not even in part") {
  if (test::on_cpu()) return;
  run_threads(1, {}, [](World& world) {
    struct Net : nn::Module {
      Tensor counter = Tensor::zeros({2});
      nn::Linear layer{2, 2};
      Tensor forward(const Tensor& x) override { return layer(x); }
      void visit(nn::Visitor& p) override {
        p("counter", counter);
        p("layer", layer);
      }
    } model;
    const dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), world);
    expect_error<StateError>("[to] 'layer.weight' is under DistributedDataParallel",
                             [&] { model.to(test_device()); });
    expect(model.counter.device() == Device{}, "a buffer was moved");
  });
}

TEST_CASE("memory: two handles of one buffer are moved together") {
  if (test::on_cpu()) return;
  struct Net : nn::Module {
    Tensor first = Tensor::zeros({2}), second = first;
    Tensor forward(const Tensor& x) override { return x; }
    void visit(nn::Visitor& p) override {
      p("first", first);
      p("second", second);
    }
  } model;
  model.to(test_device());
  model.first.fill(3);
  CHECK(model.second.to_vector<float>() == std::vector<float>{3, 3});
}
