// Data parallelism with gradients that never leave the GPUs: every engine, recorded steps, and what
// they refuse.

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <map>

#include "lockstep/core/gpu/gpu.h"
#include "lockstep/core/gpu/graph.h"
#include "lockstep/dist/gpu/device_engine.h"
#include "lockstep/lockstep.h"

namespace lockstep {
namespace {

struct Result {
  std::string digest;
  double loss = 0;
};

struct How {
  std::string comm = "auto", transport = "";
  bool on_gpu = true, recorded = false, deferred = true, sharded = false;
  double bucket_cap_mb = 25;
};

constexpr int steps = 8, rows = 6;

// A rank's rows: unique per rank and index.
Tensor samples(int rank) {
  const Tensor x = Tensor::empty({rows, 10});
  for (std::int64_t i = 0; i < x.numel(); ++i)
    x.data<float>()[i] = static_cast<float>((i * 7 + rank * 13) % 23 - 11) / 8;
  return x;
}
Tensor labels(int rank) {
  const Tensor y = Tensor::empty({rows}, DType::i64);
  for (std::int64_t i = 0; i < rows; ++i) y.data<std::int64_t>()[i] = (i + rank) % 4;
  return y;
}

Result train(int ranks, const How& how) {
  Result result;
  run_threads(ranks, {.comm = how.comm, .transport = how.transport}, [&](World& world) {
    const Device device = how.on_gpu ? Device{*gpu::kind(), world.rank() % gpu::count()} : Device{};
    manual_seed(3);
    nn::Sequential model{nn::Linear(10, 16), nn::ReLU(), nn::Linear(16, 4)};
    model.to(device);
    optim::SGD optimizer(model.parameters(), {.lr = 0.1, .momentum = 0.9});
    dist::DistributedDataParallel ddp(
        model.parameters(), {}, world,
        {.bucket_cap_mb = how.bucket_cap_mb, .deferred = how.deferred});
    if (how.sharded) optimizer.shard(ddp);
    const Tensor x = samples(world.rank()).to(device), y = labels(world.rank()).to(device);
    const Tensor last = Tensor::empty({1}, DType::f32, device);
    const auto step = [&] {
      Tape tape;
      const Tensor loss = nn::cross_entropy(model(x), y);
      tape.backward(loss, Weight{rows, rows * ranks});
      optimizer.step();
      optimizer.zero_grad();
      last.copy_from(loss.detach().view({1}));
    };
    StepGraph graph(step, device);
    for (int i = 0; i < steps; ++i)
      if (how.recorded)
        graph();
      else
        step();
    const std::string digest = parameter_digest(model.parameters());
    for (const std::string& other : dist::gather_text(world.communicator(), digest))
      check<Error>(other == digest, "replicas differ: {} and {}", other, digest);
    const Tensor loss = last.to(Device{}).clone();
    world.communicator().all_reduce(loss, "loss").wait();
    if (world.rank() == 0) result = {digest, loss.item() / ranks};
  });
  return result;
}

}  // namespace

TEST_CASE("GPU DDP: the losses of the CPU, and one digest for all that fold in tree order" *
          doctest::test_suite("not-races")) {
  for (const int ranks : {1, 2, 3, 4}) {
    CAPTURE(ranks);
    const bool nccl = dist::nccl_available() && ranks <= gpu::count();
    const Result cpu = train(ranks, {.on_gpu = false});
    const Result direct = train(ranks, {.transport = "ipc"});
    CHECK(direct.loss == doctest::Approx(cpu.loss).epsilon(1e-5));
    for (const How& how :
         {How{.comm = "nccl-direct"}, How{.transport = "ipc", .bucket_cap_mb = 1e-4},
          How{.comm = "direct", .transport = "ipc", .recorded = true},
          How{.comm = "nccl-direct", .recorded = true}, How{.transport = "ipc", .deferred = false},
          How{.comm = "nccl-direct", .deferred = false}, How{.transport = "ipc", .sharded = true},
          How{.comm = "nccl-direct", .sharded = true}, How{.comm = "direct", .sharded = true},
          How{.transport = "ipc", .recorded = true, .sharded = true},
          How{.comm = "nccl-direct", .recorded = true, .sharded = true}})
      if (nccl || !how.comm.starts_with("nccl")) CHECK(train(ranks, how).digest == direct.digest);
    for (const How& how : {How{.comm = "nccl"}, How{.comm = "ring", .transport = "ipc"}}) {
      CAPTURE(how.comm);
      if (!nccl && how.comm == "nccl") continue;
      const Result plain = train(ranks, how);
      CHECK(plain.loss == doctest::Approx(cpu.loss).epsilon(1e-5));
      CHECK(train(ranks, how).digest == plain.digest);
      // The last bucket is cut at the same places: what a ring adds first does not change.
      for (const bool deferred : {false, true})
        CHECK(train(ranks, {.comm = how.comm,
                            .transport = how.transport,
                            .recorded = true,
                            .deferred = deferred})
                  .digest == plain.digest);
    }
  }
}

TEST_CASE("GPU DDP: a recorded step refuses what the host would have to read") {
  const Device device{*gpu::kind(), 0};
  const auto recorded = [&](const std::function<void(Tape&, const Tensor&)>& backward,
                            const dist::DdpOptions& options, bool use_both) {
    return [=](World& world) {
      const Parameter a(Tensor::full({4}, 1, DType::f32, device), "a"),
          b(Tensor::full({4}, 2, DType::f32, device), "b");
      dist::DistributedDataParallel ddp({a, b}, {}, world, options);
      StepGraph step(
          [&] {
            Tape tape;
            const Tensor x = mul(a, a);
            backward(tape, sum(use_both ? mul(x, b) : x));
            ddp.zero_grad();
          },
          device);
      for (int i = 0; i < 3; ++i) step();
    };
  };
  const auto plain = [](Tape& tape, const Tensor& loss) { tape.backward(loss); };
  const auto summed = [](Tape& tape, const Tensor& loss) { tape.backward(loss, Weight{3}); };
  const JoinOptions ipc{.transport = "ipc"};
  CHECK_NOTHROW(run_threads(2, ipc, recorded(plain, {}, true)));
  CHECK_THROWS_WITH_AS(run_threads(2, ipc, recorded(summed, {}, true)),
                       doctest::Contains("the total weight must be known"), StateError);
  CHECK_THROWS_WITH_AS(run_threads(2, ipc, recorded(plain, {}, false)),
                       doctest::Contains("every parameter must be used, 'b' is not"), StateError);
  CHECK_THROWS_WITH_AS(
      run_threads(2, ipc, recorded(plain, {.nonfinite = dist::NonFinite::skip}, true)),
      doctest::Contains("NonFinite::report"), StateError);
  CHECK_THROWS_WITH_AS(
      run_threads(1, ipc, recorded(plain, {.hook = dist::compress(DType::bf16)}, true)),
      doctest::Contains("no communication hook"), StateError);
  const auto with_buffer = [&](World& world) {
    const Parameter a(Tensor::full({4}, 1, DType::f32, device), "a");
    const Tensor seen = Tensor::zeros({1}, DType::f32, device);
    dist::DistributedDataParallel ddp({a}, {{"seen", seen}}, world);
    check<Error>(ddp.recordable() == (world.size() == 1), "recordable, with a buffer");
    StepGraph step(
        [&] {
          Tape tape;
          tape.backward(sum(mul(a, a)));
          ddp.zero_grad();
        },
        device);
    for (int i = 0; i < 3; ++i) step();
  };
  CHECK_THROWS_WITH_AS(run_threads(2, ipc, with_buffer),
                       doctest::Contains("'seen' is one: BufferMode::off"), StateError);
  CHECK_NOTHROW(run_threads(1, ipc, with_buffer));
}

TEST_CASE("GPU DDP: gradients that go by way of the host, where there is no engine") {
  const Device device{*gpu::kind(), 0};  // of both ranks, which NCCL refuses
  for (const std::string comm : {"auto", "ring", "direct"}) {
    CAPTURE(comm);
    std::array<std::string, 2> digests;
    run_threads(2, {.comm = comm}, [&](World& world) {
      manual_seed(0);
      nn::Sequential model{nn::Linear(6, 9), nn::Tanh(), nn::Linear(9, 4)};
      model.to(device);
      optim::SGD optimizer(model.parameters(), {.lr = 0.1, .momentum = 0.9});
      dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), world);
      const Tensor x = Tensor::full({4, 6}, world.rank() + 1, DType::f32, device);
      const Tensor y = Tensor::full({4}, 1, DType::i64, device);
      for (int i = 0; i < 6; ++i) {
        Tape tape;
        tape.backward(nn::cross_entropy(model(x), y), Weight{4, 8});
        optimizer.step();
        ddp.zero_grad();
      }
      ddp.check_replicas();
      digests[dist::index(world.rank())] = parameter_digest(model.parameters());
    });
    CHECK(digests[0] == digests[1]);
  }
}

TEST_CASE("GPU DDP: a bad label of the last step is told, though no rank reads the loss") {
  const Device device{*gpu::kind(), 0};
  CHECK_THROWS_WITH_AS(
      run_threads(2, {.transport = "ipc"},
                  [&](World& world) {
                    nn::Linear model(4, 3);
                    model.to(device);
                    dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), world);
                    const std::int64_t label = world.rank() == 1 ? 7 : 0;
                    const Tensor labels = Tensor::of<std::int64_t>({2}, {1, label}).to(device);
                    Tape tape;
                    tape.backward(cross_entropy(model(Tensor::full({2, 4}, 1).to(device)), labels));
                  }),
      doctest::Contains("[cross_entropy] label 7 of sample 1 is not one of the classes"),
      DataError);
}

TEST_CASE("GPU DDP: ranks whose models lie on different kinds of devices") {
  CHECK_THROWS_WITH_AS(
      run_threads(2, {.transport = "ipc"},
                  [&](World& world) {
                    nn::Linear model(4, 3);
                    if (world.rank() == 1) model.to(Device{*gpu::kind(), 0});
                    const dist::DistributedDataParallel ddp(model.parameters(), model.buffers(),
                                                            world);
                  }),
      doctest::Contains(fmt::format("(3, 4) f32 on {}", Device::name_of(*gpu::kind())).c_str()),
      Error);
}

TEST_CASE("GPU DDP: a deferred verdict is told when it is asked for, and at the end") {
  enum class Told { next_backward, settle, last_step, statistics, end, recording };
  using enum Told;
  std::atomic<int> untold = 0;  // ranks whose backward has not told it
  // Their totals differ: what reads the verdict tells both ranks so. Of v, which is frozen, nothing
  // is waited for.
  const auto train = [&untold](World& world, Told told) {
    const Device device{*gpu::kind(), 0};
    const Parameter v(Tensor::full({3}, 2, DType::f32, device), "v"),
        w(Tensor::full({4}, 2, DType::f32, device), "w");
    dist::DistributedDataParallel ddp({v, w}, {}, world);
    v.set_requires_grad(false);
    const auto backward = [&](std::optional<Weight> weight) {
      w.zero_grad();
      Tape tape;
      tape.backward(sum(mul(w, w)), weight);
    };
    StepGraph graph([&] { backward(Weight{1, 2}); }, device);
    for (int i = 0; i < 3; ++i) backward(Weight{1, 2});
    if (told == recording) graph();
    backward(Weight{1.0, world.rank() == 0 ? 2.0 : 3.0});
    ++untold;
    if (told == next_backward) backward(Weight{1, 2});
    if (told == recording) graph();
    if (told == settle) ddp.settle();
    if (told == last_step) (void)ddp.last_step();
    if (told == statistics) (void)ddp.statistics();
    check<Error>(told == end, "it was not told");
  };
  for (const Told told : {next_backward, settle, last_step, statistics, end, recording}) {
    CAPTURE(static_cast<int>(told));
    untold = 0;
    CHECK_THROWS_WITH_AS(
        run_threads(2, {.transport = "ipc"}, [&](World& world) { train(world, told); }),
        doctest::Contains("the ranks' weights do not fit together"), StateError);
    CHECK(untold == 2);
  }
}

TEST_CASE("GPU DDP: an exception that ends a training is not replaced by a deferred verdict") {
  const auto train = [](World& world) {
    const Device device{*gpu::kind(), 0};
    const Parameter w(Tensor::full({4}, 2, DType::f32, device), "w");
    const dist::DistributedDataParallel ddp({w}, {}, world);
    for (int i = 0; i < 3; ++i) {
      w.zero_grad();
      Tape tape;
      tape.backward(sum(mul(w, w)), Weight{1, i == 2 ? 2 + world.rank() : 2});
    }
    throw DataError("the last page is missing");
  };
  CHECK_THROWS_WITH_AS(run_threads(2, {.transport = "ipc"}, train), "the last page is missing",
                       DataError);
}

TEST_CASE("GPU DDP: a deferred verdict about the replicas names what differs after the last step") {
  for (const bool average : {false, true}) {
    const auto train = [average](World& world) {
      const Device device{*gpu::kind(), 0};
      const Parameter v(Tensor::full({500}, 1, DType::f32, device), "v"),
          w(Tensor::full({4}, 1, DType::f32, device), "w");
      optim::SGD optimizer({v, w}, {.lr = 0.01});
      dist::DistributedDataParallel ddp({v, w}, {}, world);
      for (int i = 0; i < 8; ++i) {
        if (!average && i == 4 && world.rank() == 1) w.value().slice(2, 3).fill(0.5);
        Tape tape;
        tape.backward(add(sum(mul(v, v)), sum(mul(w, w))), Weight{1, 2});
        optimizer.step();
        optimizer.zero_grad();
        // It uses the memory in which the last verdict still lies.
        if (average && i == 5) ddp.average_parameters();
      }
    };
    const JoinOptions ipc{.transport = "ipc"};
    if (average)
      CHECK_NOTHROW(run_threads(2, ipc, train));
    else
      CHECK_THROWS_WITH_AS(run_threads(2, ipc, train),
                           doctest::Contains("the replicas differ: 'w' at (2):"), StateError);
  }
}

}  // namespace lockstep
