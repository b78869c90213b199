// Recorded steps of several ranks: what happens between two replays, and after the last one.

#include <doctest/doctest.h>

#include <cmath>
#include <functional>

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

namespace {

/// A training of two ranks, recorded or not: the digest of its parameters.
std::string digest_of(bool recorded, const std::function<void(int, nn::Sequential&)>& before,
                      bool step_outside, int* replays = nullptr) {
  std::string digest;
  run_threads(2, {.transport = "ipc", .timeout = dist::Seconds(10)}, [&](World& world) {
    const Device device{*gpu::kind(), 0};
    manual_seed(3);
    nn::Sequential model{nn::Linear(5, 7), nn::ReLU(), nn::Linear(7, 3)};
    model.to(device);
    const Tensor x = Tensor::full({4, 5}, 1 + world.rank(), DType::f32, device);
    const Tensor y = Tensor::zeros({4}, DType::i64, device);
    optim::SGD optimizer(model.parameters(), {.lr = 0.1, .momentum = 0.9});
    const dist::DistributedDataParallel ddp(model.parameters(), {}, world);
    const auto step = [&] {
      if (step_outside) optimizer.zero_grad();
      Tape tape;
      tape.backward(nn::cross_entropy(model(x), y), Weight{4, 8});
      if (step_outside) return;
      optimizer.step();
      optimizer.zero_grad();
    };
    StepGraph graph(step, device);
    for (int i = 0; i < 12; ++i) {
      before(i, model);
      const bool replayed = recorded ? graph() : (step(), false);
      if (replays && world.rank() == 0) *replays += replayed;
      if (step_outside) optimizer.step();
    }
    if (world.rank() == 0) digest = parameter_digest(model.parameters());
  });
  return digest;
}

}  // namespace

TEST_CASE("GPU DDP: parameters that are frozen between replays, on all ranks") {
  const auto freeze = [](int i, nn::Sequential& model) {
    if (i == 4 || i == 8) model.at<nn::Linear>("0").weight.set_requires_grad(i == 8);
  };
  int replays = 0;
  CHECK(digest_of(true, freeze, false, &replays) == digest_of(false, freeze, false));
  CHECK(replays == 9);  // 11, but for two changes
  const auto look = [&](int i, nn::Sequential& model) {
    if (i > 4 && i <= 8)
      CHECK(model.at<nn::Linear>("0").weight.gradient_state() == GradientState::nothing);
    freeze(i, model);
  };
  for (const bool recorded : {false, true})
    CHECK(digest_of(recorded, look, true) == digest_of(false, freeze, true));
}

TEST_CASE("GPU DDP: an optimizer's step behind a replay") {
  int replays = 0;
  const auto nothing = [](int, nn::Sequential&) {};
  CHECK(digest_of(true, nothing, true, &replays) == digest_of(false, nothing, true));
  CHECK(replays >= 10);
}

TEST_CASE("GPU DDP: accumulation in a recorded step is refused as such") {
  const auto train = [](World& world) {
    const Device device{*gpu::kind(), 0};
    const Parameter w(Tensor::full({4}, 2, DType::f32, device), "w");
    const dist::DistributedDataParallel ddp({w}, {}, world);
    StepGraph graph(
        [&] {
          w.zero_grad();
          for (const bool sync : {false, true}) {
            Tape tape;
            tape.backward(sum(mul(w, w)), Weight{1, 4}, {.sync = sync});
          }
        },
        device);
    for (int i = 0; i < 3; ++i) (void)graph();
  };
  CHECK_THROWS_WITH_AS(run_threads(2, {.transport = "ipc"}, train),
                       doctest::Contains("gradients cannot be accumulated over several backwards"),
                       StateError);
}

TEST_CASE("GPU DDP: a collective of the program's that is under way when a replay begins") {
  run_threads(2, {.transport = "ipc", .timeout = dist::Seconds(10)}, [](World& world) {
    const Device device{*gpu::kind(), 0};
    const Parameter w(Tensor::full({4}, 2, DType::f32, device), "w");
    optim::SGD optimizer({w}, {.lr = 0.1});
    const dist::DistributedDataParallel ddp({w}, {}, world);
    StepGraph graph(
        [&] {
          Tape tape;
          tape.backward(sum(mul(w, w)), Weight{1, 2});
          optimizer.step();
          optimizer.zero_grad();
        },
        device);
    for (int i = 0; i < 40; ++i) {
      const Tensor metric = Tensor::full({3}, world.rank() + i, DType::f32, device);
      dist::Work work = world.communicator().all_reduce(metric, "metric");
      check<Error>(graph() == (i > 0), "call {}", i);
      work.wait();
      const float sum = metric.to_vector<float>()[0];
      check<Error>(sum == static_cast<float>(2 * i + 1), "{} in call {}", sum, i);
    }
  });
}

TEST_CASE("GPU DDP: a rank that ends before the others' last replay") {
  const auto train = [](World& world) {
    const Device device{*gpu::kind(), 0};
    const Parameter w(Tensor::full({4}, 2, DType::f32, device), "w");
    const dist::DistributedDataParallel ddp({w}, {}, world);
    StepGraph graph(
        [&] {
          Tape tape;
          tape.backward(sum(mul(w, w)), Weight{1, 2});
          w.zero_grad();
        },
        device);
    for (int i = 0; i < (world.rank() == 1 ? 6 : 12); ++i) graph();
    (void)w.value().to_vector<float>();
  };
  const JoinOptions options{.transport = "ipc", .timeout = dist::Seconds(1)};
  CHECK_THROWS_AS(run_threads(2, options, train), CommError);
}

TEST_CASE("GPU DDP: batches of all ranks that do not divide by them, in recorded steps") {
  const auto train = [](int ranks, bool recorded) {
    std::string digest;
    run_threads(ranks, {.transport = "ipc"}, [&](World& world) {
      const Device device{*gpu::kind(), 0};
      manual_seed(3);
      nn::Linear model(5, 3);
      model.to(device);
      optim::SGD optimizer(model.parameters(), {.lr = 0.1});
      const dist::DistributedDataParallel ddp(model.parameters(), {}, world);
      const Tensor x = Tensor::empty({70, 5});
      for (std::int64_t i = 0; i < x.numel(); ++i)
        x.data<float>()[i] = static_cast<float>(i * 37 % 101 - 50) / 40;
      const data::TensorDataset set({{"x", x}, {"y", Tensor::zeros({70}, DType::i64)}});
      const auto step = [&](const data::Batch& batch) {
        Tape tape;
        const Tensor loss = nn::cross_entropy(model(batch.x), batch.y);
        tape.backward(loss, batch.weight);
        optimizer.step();
        optimizer.zero_grad();
        return loss.detach();
      };
      nn::RecordedSteps steps(step);
      for (const data::Batch& batch :
           data::Loader(set, {.total_batch = 8, .device = device}, world))
        recorded ? (void)steps(batch) : (void)step(batch);
      if (recorded) check<Error>(steps.replays() == 6, "{} replays", steps.replays());
      if (world.rank() == 0) digest = parameter_digest(model.parameters());
    });
    return digest;
  };
  for (const int ranks : {2, 3}) CHECK(train(ranks, true) == train(ranks, false));
}

}  // namespace lockstep
