// Steps that one rank takes otherwise than the others, or with nothing to say about its data.

#include <doctest/doctest.h>

#include <utility>

#include "support/small_models.h"
#include "support/worlds.h"

using namespace lockstep;
using namespace lockstep::test;

TEST_CASE("a rank that says nothing of its data is not compared, whatever it said before") {
  const auto messages = messages_on_threads(3, [](World& world) {
    const Parameter w = scalar("w", 1);
    DistributedDataParallel ddp({w}, {}, world);
    for (const std::uint64_t epoch : {1, 2, 3}) {
      w.zero_grad();
      Tape tape;
      const bool silent = static_cast<std::uint64_t>(world.rank()) < epoch - 1;
      tape.backward(scale(w, 2), Weight{1, Weight::summed, {.deal_digest = silent ? 0 : epoch}});
    }
  });
  check_all_well(messages);
}

TEST_CASE("trap: two optimizers under one DDP, of which either has other options on one rank") {
  for (const bool first_differs : {true, false}) {
    check_all_say(
        messages_on_threads(3,
                            [=](World& world) {
                              const Parameter a = scalar("a", 2), b = scalar("b", 3);
                              DistributedDataParallel ddp({a, b}, {}, world);
                              const double odd = world.rank() == 2 ? 0.2 : 0.1;
                              optim::SGD first({a}, {.lr = first_differs ? odd : 0.1});
                              optim::SGD second({b}, {.lr = first_differs ? 0.1 : odd});
                              for (int step = 0; step < 2; ++step) {
                                ddp.zero_grad();
                                Tape tape;
                                tape.backward(scale(
                                    a * b, 0));  // no step moves anything: only the options differ
                                first.step();
                                second.step();
                              }
                            }),
        {"ranks 0 and 2 did not take the same optimizer steps",
         "SGD's lr 0.2 on rank 2, SGD's lr 0.1 on ranks 0, 1"});
  }
}

TEST_CASE("trap: one rank exchanges two parameters of one shape") {
  const auto messages = messages_on_threads(3, [](World& world) {
    const Parameter a = scalar("a", 2), b = scalar("b", 3);
    DistributedDataParallel ddp({a, b}, {}, world);
    optim::SGD optimizer({a, b}, {.lr = 0.5});
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      Tape tape;
      tape.backward(a + b);  // both get the same gradient, wherever they lie
      if (step == 0 && world.rank() == 1)
        std::swap(*a.value().data<double>(), *b.value().data<double>());
      optimizer.step();
    }
  });
  check_all_say(messages, {"the replicas differ: 'a'"});
}

TEST_CASE("ranks may take different numbers of local steps; averaging ends the difference") {
  for (const int world_size : {2, 3, 4}) {
    check_all_well(messages_on_threads(world_size, [](World& world) {
      const Parameter w = scalar("w", 1);
      DistributedDataParallel ddp({w}, {}, world);
      optim::SGD optimizer({w}, {.lr = 0.5});
      const auto backward = [&](bool sync) {
        optimizer.zero_grad();
        Tape tape;
        tape.backward(scale(w, 2), {}, {.sync = sync});
      };
      for (int step = 0; step <= world.rank(); ++step) {
        backward(false);
        optimizer.step(optim::local);
      }
      optimizer.zero_grad();
      ddp.average_parameters();
      expect(w.value().item() == 1 - (world.size() + 1) / 2.0, "the mean: {}", w.value().item());
      for (int step = 0; step < 2; ++step) {
        backward(true);
        optimizer.step();
      }
    }));
  }
}

TEST_CASE("a local step is not forgotten, whatever other optimizers do after it") {
  const auto messages = messages_on_threads(2, [](World& world) {
    const Parameter a = scalar("a", 2), b = scalar("b", 3);
    DistributedDataParallel ddp({a, b}, {}, world);
    optim::SGD first({a}, {.lr = 0.5}), second({b}, {.lr = 0.5});
    const auto backward = [&] {
      ddp.zero_grad();
      Tape tape;
      tape.backward(a * b);
    };
    backward();
    first.step(optim::local);
    second.step();
    backward();
  });
  check_all_say(messages, {"stepped on this rank's own gradients (optim::local)"});
}
