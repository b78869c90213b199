// What all ranks must agree on: the calls they make, the model, whether a step is worth taking, the
// buffers. And what one of them does alone.

#include <doctest/doctest.h>

#include <limits>

#include "dist/ddp/halves_hook.h"
#include "support/small_models.h"
#include "support/worlds.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// Three steps on each rank's own rows, model called directly: there is no wrapper to go through.
/// Without DDP, only local steps are taken.
void train(Net& model, int rank) {
  optim::SGD optimizer(model.parameters(), {.lr = 0.5});
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    Tape tape;
    tape.backward(loss_of(model, 10 * step + rank, 10 * step + rank + 1));
    model.first.weight.managed() ? optimizer.step() : optimizer.step(optim::local);
  }
}

}  // namespace

TEST_CASE("trap 2: calling the model itself synchronizes; there is no wrapper to be bypassed") {
  run_threads(3, {}, [](World& world) {
    manual_seed(2);
    Net model, unsynchronized;
    {
      DistributedDataParallel ddp(model.parameters(), model.buffers(), world);
      train(model, world.rank());
    }
    expect(replicas_agree(world.communicator(), model.parameters()), "replicas differ");
    // Negative control: the same without DistributedDataParallel drifts apart.
    train(unsynchronized, world.rank());
    expect(!replicas_agree(world.communicator(), unsynchronized.parameters()), "no drift");
  });
}

TEST_CASE("trap 2: a step on gradients that were not synchronized is refused by name") {
  const auto after = [](const std::function<void(Net&, DistributedDataParallel&)>& backward) {
    return messages_on_threads(3, [&](World& world) {
      Net model;
      DistributedDataParallel ddp(model.parameters(), {}, world);
      optim::SGD optimizer(model.parameters(), {.lr = 0.5});
      backward(model, ddp);
      optimizer.step();
    });
  };
  check_all_say(after([](Net& model, DistributedDataParallel&) {
                  Tape tape;
                  tape.backward(loss_of(model, 0, 2), {}, {.sync = false});
                }),
                {"[step] the gradient of 'first.weight' is not synchronized"});
  check_all_say(after([](Net& model, DistributedDataParallel& ddp) {
                  const dist::NoSync accumulate = ddp.no_sync();
                  Tape tape;
                  tape.backward(loss_of(model, 0, 2));
                }),
                {"[step] the gradient of 'first.weight' is not synchronized"});
  check_all_say(after([](Net&, DistributedDataParallel&) {}),
                {"[step] nothing was synchronized since the last step", "'first.weight'"});
  check_all_well(after([](Net&, DistributedDataParallel& ddp) { ddp.synchronize(); }));
}

TEST_CASE("trap 2: divergence on purpose says so, and averaging ends it") {
  run_threads(3, {}, [](World& world) {
    const Parameter w = scalar("w", 6);
    DistributedDataParallel ddp({w}, {}, world);
    optim::SGD optimizer({w}, {.lr = 1});
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      Tape tape;
      tape.backward(scale(w, world.rank()), {}, {.sync = false});
      optimizer.step(optim::local);
    }
    expect(w.value().item() == 6 - 2 * world.rank(), "a step of its own: {}", w.value().item());
    optimizer.zero_grad();
    ddp.average_parameters();
    expect(w.value().item() == 6 - 2 * (0 + 1 + 2) / 3.0, "averaged: {}", w.value().item());
  });
}

TEST_CASE(
    "trap 10: a metric that one rank sums in the middle of training meets the others' bucket") {
  const auto messages = messages_on_threads(3, [](World& world) {
    Net model;
    DistributedDataParallel ddp(model.parameters(), {}, world);
    if (world.rank() == 0) world.communicator().all_reduce(Tensor::zeros({1}), "my loss").wait();
    Tape tape;
    tape.backward(loss_of(model, 0, 2));
  });
  check_all_say(messages, {"'my loss' of 1 f32", "'bucket 0"});
}

TEST_CASE("trap 11: models that differ are told apart by every rank, rank 0 included") {
  struct Case {
    std::function<void(Net&, dist::DdpOptions&)> change;
    std::string others, odd;  // what they have, or how that ends
  };
  const std::vector<Case> cases = {
      {[](Net& net, auto&) { net.first = nn::Linear(3, 5, true, DType::f64); },
       "parameter 'first.weight' (4, 3) f64", "parameter 'first.weight' (5, 3) f64"},
      {[](Net& net, auto&) { net.second = nn::Linear(4, 2, true, DType::f32); },
       "parameter 'second.weight' (2, 4) f64", "parameter 'second.weight' (2, 4) f32"},
      {[](Net& net, auto&) { net.second = nn::Linear(4, 2, false, DType::f64); },
       "parameter 'second.bias' (2,) f64", "bucket_cap_mb 25"},
      {[](Net& net, auto&) { net.first.bias.set_requires_grad(false); },
       "parameter 'first.bias' (4,) f64", "parameter 'first.bias' (4,) f64 frozen"},
      {[](Net&, dist::DdpOptions& options) { options.bucket_cap_mb = 10; }, "bucket_cap_mb 25",
       "bucket_cap_mb 10"},
      {[](Net&, dist::DdpOptions& options) { options.first_bucket_mb = 0.5; }, "first_bucket_mb 1",
       "first_bucket_mb 0.5"},
      {[](Net&, dist::DdpOptions& options) { options.last_bucket_mb = 0.5; }, "last_bucket_mb 1",
       "last_bucket_mb 0.5"},
      {[](Net&, dist::DdpOptions& options) { options.rebuild_buckets = false; },
       "rebuild_buckets true", "rebuild_buckets false"},
      {[](Net&, dist::DdpOptions& options) { options.bucket_layout = "3 2 1 0 / 2"; },
       "bucket_layout ", "bucket_layout 3 2 1 0 / 2"},
      {[](Net&, dist::DdpOptions& options) { options.buffers = dist::BufferMode::average; },
       "buffers broadcast", "buffers average"},
      {[](Net&, dist::DdpOptions& options) { options.nonfinite = dist::NonFinite::skip; },
       "nonfinite report", "nonfinite skip"},
      {[](Net&, dist::DdpOptions& options) { options.hook = std::make_shared<HalvesHook>(); },
       "hook none", ""},
      {[](Net&, dist::DdpOptions& options) { options.deferred = false; }, "deferred true",
       "deferred false"},
      {[](Net&, dist::DdpOptions& options) { options.check_replicas = false; },
       "check_replicas true", "check_replicas false"},
  };
  for (const Case& c : cases)
    for (const int odd_one : {1, 2}) {
      const auto messages = messages_on_threads(3, [&](World& world) {
        Net model;
        dist::DdpOptions options;
        if (world.rank() == odd_one) c.change(model, options);
        DistributedDataParallel ddp(model.parameters(), model.buffers(), world, options);
      });
      check_all_say(messages, {fmt::format("{} on rank {}", c.odd, odd_one),
                               fmt::format("{} on ranks 0, {}", c.others, 3 - odd_one),
                               fmt::format("rank {} is in the minority", odd_one)});
    }
}

TEST_CASE("trap 11: so are orders, names and buffers, and a rank 0 that is the odd one") {
  const auto differ =
      [](const std::function<void(std::vector<Parameter>&, std::vector<Buffer>&)>& change) {
        return messages_on_threads(3, [&](World& world) {
          std::vector<Parameter> parameters = {scalar("a"), scalar("b")};
          std::vector<Buffer> buffers = {{"mean", Tensor::zeros({2})}};
          if (world.rank() == 0) change(parameters, buffers);
          DistributedDataParallel ddp(parameters, buffers, world);
        });
      };
  check_all_say(differ([](auto& p, auto&) { std::swap(p[0], p[1]); }),
                {"differ: parameter 'b' () f64 on rank 0, parameter 'a' () f64 on ranks 1, 2"});
  check_all_say(differ([](auto& p, auto&) { p[1].set_name("c"); }),
                {"differ: parameter 'c' () f64 on rank 0, parameter 'b' () f64 on ranks 1, 2"});
  check_all_say(differ([](auto&, auto& b) { b[0].value = Tensor::zeros({3}); }),
                {"differ: buffer 'mean' (3,) f32 on rank 0, buffer 'mean' (2,) f32 on ranks 1, 2"});
  check_all_say(differ([](auto&, auto& b) { b.clear(); }),
                {"on rank 0, buffer 'mean' (2,) f32 on ranks 1, 2"});
}

namespace {

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

/// The loss of three elements' sum, times `factors`.
Tensor weighted_sum(const Parameter& w, const std::vector<double>& factors) {
  return sum(w * Tensor::of<double>({3}, factors));
}

}  // namespace

TEST_CASE("trap 15: a NaN on one rank makes all of them skip the step, and only that one") {
  run_threads(3, {}, [](World& world) {
    const Parameter w(Tensor::full({3}, 1, DType::f64), "w");
    const Parameter bias = scalar("bias", 1);
    DistributedDataParallel ddp({w, bias}, {}, world, {.nonfinite = dist::NonFinite::skip});
    const Parameter reference(Tensor::full({3}, 1, DType::f64), "w");
    optim::Adam optimizer({w, bias}, {.lr = 0.1}), expected({reference}, {.lr = 0.1});
    for (int step = 0; step < 4; ++step) {
      const bool bad = step == 1;
      const Tensor before = w.value().clone();
      optimizer.zero_grad();
      const double x = world.rank() + 1;
      Tape tape;
      tape.backward(weighted_sum(w, {x, bad && world.rank() == 1 ? not_a_number : 2 * x, 3 * x}) +
                    scale(bias, x));
      const auto verdict = ddp.last_step().verdict;
      expect(verdict == (bad ? dist::StepVerdict::skip : dist::StepVerdict::commit), "verdict");
      expect(w.gradient().defined() == !bad && bias.gradient().defined() == !bad, "gradients");
      optimizer.step();
      if (bad) {
        expect(distance(w.value(), before) == 0, "stepped all the same");
        continue;
      }
      // As if the skipped step had never been: Adam's step counts are three, not four.
      reference.zero_grad();
      Tape alone;
      alone.backward(weighted_sum(reference, {2, 4, 6}));
      expected.step(optim::local);
    }
    expect(distance(w.value(), reference.value()) < 1e-15, "another step count");
    expect(ddp.statistics().steps == 4 && ddp.statistics().skipped == 1, "counted");
    expect(replicas_agree(world.communicator(), {w, bias}), "replicas differ");
  });
}

TEST_CASE("trap 15: or stops them all, naming rank, parameter and element; they may go on") {
  const auto messages = messages_on_threads(3, [](World& world) {
    const Parameter w(Tensor::full({3}, 1, DType::f64), "head.weight");
    DistributedDataParallel ddp({w}, {}, world, {.nonfinite = dist::NonFinite::stop});
    std::string message;
    try {
      Tape tape;
      tape.backward(weighted_sum(w, {1, 1, world.rank() == 2 ? not_a_number : 1}));
    } catch (const StateError& error) {
      message = error.what();
    }
    w.zero_grad();
    Tape tape;  // the communicator still works: all ranks stopped together
    tape.backward(weighted_sum(w, {1, 2, 3}));
    expect(distance(w.gradient(), Tensor::of<double>({3}, {1, 2, 3})) < 1e-15, "the next step");
    fail<StateError>("{}", message);
  });
  check_all_say(messages,
                {"element 2 of the gradient of 'head.weight' is infinite or NaN on rank 2"});
}

TEST_CASE("trap 15: an exception in one rank's backward reaches all") {
  const auto messages = messages_on_threads(3, [](World& world) {
    Net model;
    DistributedDataParallel ddp(model.parameters(), {}, world);
    Tape tape;
    Tensor h = model.first(rows(0, 2));
    if (world.rank() == 1)
      h = record("memory", h.detach().clone(), {&h},
                 [](Gradients&) { fail<DeviceError>("[memory] out of memory"); });
    tape.backward(mean(model.second(h)));
  });
  CHECK(messages[1] == "[memory] out of memory");
  check_all_say({messages[0], messages[2]}, {"[backward] rank 1 left it by an exception"});
}
