// Recorded steps of several ranks: what happens between two replays, and after the last one.

#include <doctest/doctest.h>

#include <cmath>

#include "lockstep/core/gpu/gpu.h"
#include "lockstep/core/gpu/graph.h"
#include "lockstep/lockstep.h"

namespace lockstep {

TEST_CASE("GPU DDP: what one rank does between two replays is found within 64 of them") {
  const auto run = [](int rounds, bool write) {
    int replays = 0;
    const auto train = [&](World& world) {
      const Device device{*gpu::kind(), 0};
      const Parameter w(Tensor::full({4}, 1, DType::f32, device), "w");
      optim::SGD optimizer({w}, {.lr = 0.01});
      const dist::DistributedDataParallel ddp({w}, {}, world);
      StepGraph step(
          [&] {
            Tape tape;
            tape.backward(sum(mul(w, w)));
            optimizer.step();
            optimizer.zero_grad();
          },
          device);
      for (int i = 0; i < rounds; ++i) {
        if (write && i == 10 && world.rank() == 1) w.value().slice(2, 3).fill(0.5);
        step();
        if (world.rank() == 0) ++replays;
      }
    };
    std::string message;
    try {
      run_threads(2, {.transport = "ipc"}, train);
    } catch (const StateError& error) {
      message = error.what();
    }
    return std::pair{replays, message};
  };
  CHECK(run(200, false) == std::pair{200, std::string()});
  const auto [replays, message] = run(200, true);
  CHECK(replays < 2 + 64);
  CHECK(message.find("[step graph] the replicas differ: 'w' at (2):") != std::string::npos);
  CHECK(message.find("on rank 1") != std::string::npos);
}

TEST_CASE("GPU DDP: plain steps between replays, and a step recorded anew behind them") {
  const auto train = [](bool recorded) {
    std::string digest;
    run_threads(2, {.transport = "ipc"}, [&](World& world) {
      const Device device{*gpu::kind(), 0};
      const Parameter w(Tensor::full({4}, 2, DType::f32, device), "w");
      optim::SGD optimizer({w}, {.lr = 0.1, .momentum = 0.5});
      const dist::DistributedDataParallel ddp({w}, {}, world);
      const auto step = [&] {
        Tape tape;
        tape.backward(sum(mul(w, w)), Weight{1, 2});
        optimizer.step();
        optimizer.zero_grad();
      };
      StepGraph graph(step, device);
      for (int i = 0; i < 12; ++i) {
        if (i == 8) optimizer.set_lr(0.05);
        recorded&& i % 3 != 1 ? (void)graph() : step();
      }
      if (world.rank() == 0) digest = parameter_digest({w});
      if (recorded) check<Error>(graph.recordings() == 2, "{} recordings", graph.recordings());
      // The last plain step's, read before the replay behind it wrote over it.
      check<Error>(ddp.last_step().weight == 2, "a weight of {}", ddp.last_step().weight);
    });
    return digest;
  };
  CHECK(train(true) == train(false));
}

TEST_CASE("GPU DDP: a number that is not finite in the last replay is told at the end") {
  for (const int replays : {4, 65}) {  // the look before the 64th sees 63
    const auto train = [replays](World& world) {
      const Device device{*gpu::kind(), 0};
      const Tensor x = Tensor::full({4}, 1, DType::f32, device);
      const Parameter w(Tensor::full({4}, 2, DType::f32, device), "w");
      optim::SGD optimizer({w}, {.lr = 0.1});
      const dist::DistributedDataParallel ddp({w}, {}, world);
      StepGraph graph(
          [&] {
            Tape tape;
            tape.backward(sum(mul(w, x)), Weight{1, static_cast<double>(world.size())});
            optimizer.step();
            optimizer.zero_grad();
          },
          device);
      for (int i = 0; i <= replays; ++i) {
        if (i == replays) x.fill(INFINITY);
        CHECK(graph() == (i > 0));
      }
    };
    CHECK_THROWS_WITH_AS(run_threads(replays % 2 + 1, {.transport = "ipc"}, train),
                         doctest::Contains("[step graph] element 0 of 'w' has become infinite"),
                         StateError);
  }
}

}  // namespace lockstep
