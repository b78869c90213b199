// Trainings in f64 with lanes: the same bits on any number of ranks, and audits find nothing.

#include <doctest/doctest.h>

#include <functional>
#include <mutex>
#include <string>

#include "lockstep/lockstep.h"
#include "support/device.h"

using namespace lockstep;

namespace {

constexpr std::int64_t samples = 44;

data::TensorDataset make_data() {
  manual_seed(3);
  const Tensor x = cast(Tensor::randn({samples, 6}), DType::f64),
               y = Tensor::empty({samples}, DType::i64);
  for (std::int64_t i = 0; i < samples; ++i) y.data<std::int64_t>()[i] = (i * i + i / 3) % 5;
  return data::TensorDataset({{"x", x}, {"y", y}});
}

/// The digest of what a training ends with, of which each step is audited.
std::string trained(const std::function<nn::Sequential()>& make, std::int64_t batch_size,
                    int ranks) {
  std::string digest;
  std::mutex mutex;
  run_threads(ranks, {}, [&](World& world) {
    manual_seed(0);
    nn::Sequential model = make();
    model.to(test::test_device());
    nn::convert_sync_batchnorm(model, world);
    optim::SGD optimizer(model.parameters(), {.lr = 0.1, .momentum = 0.9});
    dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), world);
    dist::Audit audit(ddp, {.every = 1});
    for (int epoch = 0; epoch < 2; ++epoch) {
      const data::Loader loader(
          make_data(),
          {.batch = batch_size, .shuffle = true, .lanes = 8, .device = test::test_device()}, world,
          epoch);
      for (const data::Batch& batch : loader) {
        (void)audit.backward(loader, batch, [&](const data::Batch& b) {
          return nn::cross_entropy(model(b.x), b.y);
        });
        optimizer.step();
        optimizer.zero_grad();
      }
    }
    const std::string mine = parameter_digest(model.parameters());
    const std::lock_guard lock(mutex);
    check<Error>(digest.empty() || digest == mine, "rank {} has {}, another one {}", world.rank(),
                 mine, digest);
    digest = mine;
  });
  return digest;
}

}  // namespace

TEST_CASE("lanes: in f64, too, and audits find nothing" * doctest::test_suite("not-sim not-late")) {
  const auto mlp = [] {
    return nn::Sequential{nn::Linear(6, 5, true, DType::f64), nn::Tanh(),
                          nn::Linear(5, 5, true, DType::f64)};
  };
  const auto normalized = [] {
    return nn::Sequential{nn::Linear(6, 16, true, DType::f64),
                          nn::BatchNorm(16, {.dtype = DType::f64}), nn::ReLU(),
                          nn::Linear(16, 5, true, DType::f64)};
  };
  for (const std::int64_t batch_size : {8, 44}) {  // lanes of 1 row, and of 6 or 2
    const std::string one = trained(mlp, batch_size, 1), other = trained(normalized, batch_size, 1);
    for (const int ranks : {2, 3, 4, 5, 8}) {
      CAPTURE(batch_size);
      CAPTURE(ranks);
      CHECK(trained(mlp, batch_size, ranks) == one);
      CHECK(trained(normalized, batch_size, ranks) == other);
    }
  }
}
