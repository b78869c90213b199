// Trainings with recorded steps and deferred verdicts, as `./lockstep train` runs them on GPUs: the
// CPU's losses, and one digest with and without recording.

#include <doctest/doctest.h>

#include <optional>

#include "lockstep/core/gpu/gpu.h"
#include "lockstep/dist/gpu/device_engine.h"
#include "lockstep/lockstep.h"
#include "support/expect.h"

namespace lockstep::recorded {
namespace {

struct How {
  std::string comm = "auto", transport = "";
  bool on_gpu = true, recorded = false, deferred = true;
  int lanes = 0;
};

struct Result {
  std::string digest;
  std::vector<double> losses;
  std::int64_t replays = 0;
};

// 50 samples: with batches of 8 per rank, the last step of an epoch has fewer.
data::TensorDataset samples() {
  const Tensor x = Tensor::empty({50, 10}), y = Tensor::empty({50}, DType::i64);
  for (std::int64_t i = 0; i < x.numel(); ++i)
    x.data<float>()[i] = static_cast<float>(i * 37 % 101 - 50) / 40;
  for (std::int64_t i = 0; i < y.numel(); ++i) y.data<std::int64_t>()[i] = i * 7 % 4;
  return data::TensorDataset({{"x", x}, {"y", y}});
}

constexpr int epochs = 4;

// NCCL needs a GPU for each rank.
bool reaches(std::string_view comm, int ranks) {
  return !comm.starts_with("nccl") || (dist::nccl_available() && ranks <= gpu::count());
}

Result train(int ranks, const How& how) {
  Result result;
  run_threads(ranks, {.comm = how.comm, .transport = how.transport}, [&](World& world) {
    const Device device = how.on_gpu ? Device{*gpu::kind(), world.rank() % gpu::count()} : Device{};
    manual_seed(3);
    nn::Sequential model{nn::Linear(10, 16), nn::ReLU(), nn::Linear(16, 4)};
    model.to(device);
    optim::Adam optimizer(model.parameters(), {.lr = 0.01});
    dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), world,
                                      {.deferred = how.deferred});
    const auto step = [&](const data::Batch& batch) {
      Tape tape;
      const Tensor loss = nn::cross_entropy(model(batch.x), batch.y);
      const Tensor parts = dist::LossLog::parts(loss);
      tape.backward(loss, batch.weight);
      optimizer.step();
      optimizer.zero_grad();
      return parts;
    };
    nn::RecordedSteps recorded(step);
    dist::LossLog log;
    for (int epoch = 0; epoch < epochs; ++epoch) {
      if (epoch == 2) optimizer.set_lr(0.02);  // the step is recorded anew
      for (const data::Batch& batch : data::Loader(
               samples(),
               {.batch = how.lanes ? 16 : 8, .shuffle = true, .lanes = how.lanes, .device = device},
               world, epoch))
        log.add_parts(how.recorded ? recorded(batch) : step(batch), batch.weight,
                      batch.lanes.get());
    }
    std::vector<double> losses;
    for (const dist::LossLog::Step& one : log.settle(world)) losses.push_back(one.mean());
    const std::string digest = parameter_digest(model.parameters());
    for (const std::string& other : dist::gather_text(world.communicator(), digest))
      test::expect(other == digest, "replicas differ: {} and {}", other, digest);
    if (world.rank() == 0) result = {digest, losses, recorded.replays()};
    if (how.recorded && how.on_gpu)
      test::expect(recorded.recordings() == 2, "{} recordings", recorded.recordings());
  });
  return result;
}

void check_losses(const std::vector<double>& got, const std::vector<double>& right) {
  REQUIRE(got.size() == right.size());
  for (std::size_t i = 0; i < right.size(); ++i) {
    CAPTURE(i);
    CHECK(got[i] == doctest::Approx(right[i]).epsilon(1e-5));
  }
}

}  // namespace

TEST_CASE("recorded steps: a training on GPUs has the CPU's losses, and the bits of plain steps" *
          doctest::test_suite("not-races")) {
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    const Result cpu = train(ranks, {.on_gpu = false});
    for (const auto& [comm, transport] : {std::pair("auto", "ipc"), std::pair("ring", "ipc"),
                                          std::pair("nccl", ""), std::pair("nccl-direct", "")}) {
      CAPTURE(comm);
      CAPTURE(transport);
      if (!reaches(comm, ranks)) continue;
      const Result plain = train(ranks, {.comm = comm, .transport = transport, .deferred = false});
      const Result deferred = train(ranks, {.comm = comm, .transport = transport});
      const Result recorded =
          train(ranks, {.comm = comm, .transport = transport, .recorded = true});
      check_losses(plain.losses, cpu.losses);
      CHECK(deferred.losses == plain.losses);
      CHECK(recorded.losses == plain.losses);
      CHECK(deferred.digest == plain.digest);
      CHECK(recorded.digest == plain.digest);
      // All but the first step and the one with another rate, which are taken as they are, those
      // that are recorded, and the last one of each epoch.
      const auto in_epoch = static_cast<std::int64_t>(plain.losses.size()) / epochs;
      CHECK(recorded.replays == epochs * (in_epoch - 1) - 4);
    }
  }
}

TEST_CASE("recorded steps: with lanes, one digest for any number of ranks") {
  std::optional<Result> first;
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    for (const bool recorded : {false, true}) {
      const Result now = train(ranks, {.transport = "ipc", .recorded = recorded, .lanes = 4});
      if (!first) first = now;
      CHECK(now.digest == first->digest);
      CHECK(now.losses == first->losses);
      CHECK((now.replays > 0) == recorded);
    }
  }
}

}  // namespace lockstep::recorded
