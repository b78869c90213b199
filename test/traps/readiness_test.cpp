// Which gradients are ready, and when: no flag says so, the tape knows.

#include <doctest/doctest.h>

#include <map>
#include <random>

#include "support/small_models.h"
#include "support/worlds.h"

using namespace lockstep;
using namespace lockstep::test;

TEST_CASE("trap 1: a parameter that some ranks do not use needs no flag") {
  run_threads(4, {}, [](World& world) {
    // In step s, rank r goes through branch (r + s) mod 2, and nobody through the third.
    const std::vector<Parameter> branches = {scalar("a"), scalar("b"), scalar("c", 5)};
    DistributedDataParallel ddp(branches, {}, world);
    optim::SGD optimizer(branches, {.lr = 1, .momentum = 0.9, .weight_decay = 0.1});
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      Tape tape;
      const Parameter& mine = branches[dist::index((world.rank() + step) % 2)];
      tape.backward(scale(mine, world.rank() + 1));  // d/dw = rank + 1
      const double even = (1 + 3) / 4.0, odd = (2 + 4) / 4.0;
      expect(gradient_of(branches[0]) == (step == 0 ? even : odd), "a: {}",
             gradient_of(branches[0]));
      expect(gradient_of(branches[1]) == (step == 0 ? odd : even), "b: {}",
             gradient_of(branches[1]));
      expect(!branches[2].gradient().defined(), "nobody used c");
      optimizer.step();
    }
    expect(branches[2].value().item() == 5, "no step for c, not even of weight decay");
    expect(replicas_agree(world.communicator(), branches), "replicas differ");
  });
}

TEST_CASE("trap 3: a model that is moved after construction is refused by name") {
  const auto after_construction = [](const std::function<void(Net&)>& move) {
    return messages_on_threads(3, [&](World& world) {
      Net model;
      DistributedDataParallel ddp(model.parameters(), model.buffers(), world);
      move(model);
    });
  };
  const Device elsewhere{Device::Kind::sim, 0};
  const std::string refused = "'first.weight' is under DistributedDataParallel";
  check_all_say(after_construction([&](Net& model) { model.to(elsewhere); }), {refused});
  check_all_say(after_construction([&](Net& model) { model.first.weight.move_to(elsewhere); }),
                {refused});
  check_all_say(after_construction([](Net& model) {
                  model.first.weight.place_gradient(Tensor::zeros({4, 3}, DType::f64));
                }),
                {refused});
}

TEST_CASE("trap 3: a parameter that was replaced or added after construction is refused by name") {
  const auto replaced = messages_on_threads(3, [](World& world) {
    Net model;
    DistributedDataParallel ddp(model.parameters(), model.buffers(), world);
    model.second.bias = Parameter(Tensor::zeros({2}, DType::f64), "new bias");
    Tape tape;
    tape.backward(loss_of(model, 0, 2));
  });
  check_all_say(replaced, {"'new bias', which is not", "keep_local()"});

  const auto added = messages_on_threads(2, [](World& world) {
    Net model;
    DistributedDataParallel ddp(model.parameters(), model.buffers(), world);
    const Parameter temperature = scalar("temperature", 1);
    Tape tape;
    tape.backward(loss_of(model, 0, 2) * temperature);
  });
  check_all_say(added, {"'temperature', which is not"});
}

namespace {

/// Counts how often each gradient is said to be ready.
struct Counter : GradientObserver {
  std::map<std::string, int> ready;
  void gradient_ready(const Parameter& parameter) override { ++ready[parameter.name()]; }
};

}  // namespace

TEST_CASE("trap 4: a recomputed block, run twice and shared, makes each gradient ready once") {
  run_threads(3, {}, [](World& world) {
    const auto loss = [](Net& model, std::int64_t begin, bool recompute) {
      const auto block = [&model](const Tensor& x) { return model(x); };
      const auto run = [&](const Tensor& x) { return recompute ? checkpoint(block, x) : block(x); };
      const Tensor x = rows(begin, begin + 2);
      // The block twice, and one of its parameters outside of it as well.
      return mean(run(x) * run(scale(x, 0.5))) + mean(model.second.weight);
    };
    manual_seed(4);
    Net model, expected;
    expected.load_state_dict(model.state_dict());
    for (int r = 0; r < 3; ++r) {
      Tape tape;
      tape.backward(loss(expected, 2 * r, false), Weight{1, 3});
    }
    DistributedDataParallel ddp(model.parameters(), {}, world, {.bucket_cap_mb = 1e-5});
    Counter counter;
    std::vector<Observation> observations;
    for (const Parameter& p : model.parameters()) observations.push_back(p.observe(counter));
    Tape tape;
    tape.backward(loss(model, 2 * world.rank(), true));
    expect_same_gradients(model, expected);
    for (const Parameter& p : model.parameters())
      expect(counter.ready[p.name()] == 1, "'{}': {} times", p.name(), counter.ready[p.name()]);
  });
}

namespace {

/// A loss that goes through another part of the model each time: bit 0, the first layer as it is or
/// twice; bit 1, the second layer or none.
Tensor changing_loss(Net& model, unsigned path, std::int64_t row) {
  Tensor h = tanh(model.first(rows(row, row + 2)));
  if (path & 1) h = h * model.first(rows(row + 1, row + 3));
  return mean(path & 2 ? model.second(h) : h);
}

}  // namespace

TEST_CASE("trap 5: a graph that changes from step to step and from rank to rank needs no flag") {
  run_threads(3, {}, [](World& world) {
    manual_seed(5);
    Net model, expected;
    expected.load_state_dict(model.state_dict());
    DistributedDataParallel ddp(model.parameters(), {}, world, {.bucket_cap_mb = 1e-5});
    std::mt19937 same_on_all_ranks(5);
    for (int step = 0; step < 12; ++step) {
      for (const auto& p : model.parameters()) p.zero_grad();
      for (const auto& p : expected.parameters()) p.zero_grad();
      for (int r = 0; r < 3; ++r) {
        const unsigned path = same_on_all_ranks() % 4;
        Tape whole;
        whole.backward(changing_loss(expected, path, 3 * step + r), Weight{1, 3});
        if (r != world.rank()) continue;
        Tape tape;
        tape.backward(changing_loss(model, path, 3 * step + r));
      }
      expect_same_gradients(model, expected);
    }
  });
}

TEST_CASE("trap 6: graphs that change within and between windows of no_sync") {
  run_threads(2, {}, [](World& world) {
    manual_seed(6);
    Net model, expected;
    expected.load_state_dict(model.state_dict());
    DistributedDataParallel ddp(model.parameters(), {}, world);
    std::mt19937 same_on_all_ranks(6);
    for (int step = 0; step < 6; ++step) {
      for (const auto& p : model.parameters()) p.zero_grad();
      for (const auto& p : expected.parameters()) p.zero_grad();
      const int parts = 1 + step % 3;  // the very first backward may be the only one, or not
      for (int part = 0; part < parts; ++part)
        for (int r = 0; r < 2; ++r) {
          const unsigned path = same_on_all_ranks() % 4;
          Tape whole;
          whole.backward(changing_loss(expected, path, 5 * part + r), Weight{1, 2.0 * parts});
          if (r != world.rank()) continue;
          const auto backward = [&] {
            Tape tape;
            tape.backward(changing_loss(model, path, 5 * part + r));
          };
          if (part + 1 < parts) {
            const dist::NoSync accumulate = ddp.no_sync();
            backward();
          } else {
            backward();
          }
        }
      expect_same_gradients(model, expected);
    }
  });
}

TEST_CASE("trap 7: accumulation is a property of backward, wherever forward ran") {
  run_threads(2, {}, [](World& world) {
    const double mine = world.rank() + 1;
    for (const bool forward_inside : {true, false}) {
      const Parameter w = scalar("w", 3);
      DistributedDataParallel ddp({w}, {}, world);
      {
        Tape tape;
        Tensor loss = forward_inside ? Tensor() : scale(w, mine);
        const dist::NoSync accumulate = ddp.no_sync();
        if (forward_inside) loss = scale(w, mine);
        tape.backward(loss);
      }
      expect(w.gradient_state() == GradientState::local, "accumulated only");
      Tape tape;
      tape.backward(scale(w, 10 * mine));
      expect(gradient_of(w) == (1 + 10 + 2 + 20) / 4.0, "mean of four parts: {}", gradient_of(w));
    }
  });
}

TEST_CASE("trap 7: a window in the wrong order, its last backward not synchronized, is caught") {
  const auto wrong_order = [](World& world) {
    const Parameter w = scalar("encoder.weight", 3);
    DistributedDataParallel ddp({w}, {}, world);
    optim::SGD optimizer({w}, {.lr = 0.1});
    for (int part = 0; part < 2; ++part) {
      Tape tape;
      tape.backward(scale(w, world.rank()), Weight{1, 4}, {.sync = part == 0});
    }
    optimizer.step();
  };
  // A rank may hear of it from the other before it gets there itself: what counts is the cause.
  CHECK_THROWS_WITH_AS(run_threads(2, {}, wrong_order),
                       doctest::Contains("'encoder.weight' is synchronized already"), StateError);

  const auto forgotten = messages_on_threads(2, [](World& world) {
    const Parameter w = scalar("encoder.weight", 3);
    DistributedDataParallel ddp({w}, {}, world);
    optim::SGD optimizer({w}, {.lr = 0.1});
    Tape tape;
    tape.backward(scale(w, world.rank()), {}, {.sync = false});
    optimizer.step();
  });
  check_all_say(forgotten, {"[step] the gradient of 'encoder.weight' is not synchronized"});
}
