// SyncBatchNorm under DistributedDataParallel, with ranks as threads.

#include <doctest/doctest.h>

#include <cmath>
#include <mutex>

#include "lockstep/core/generator.h"
#include "lockstep/dist/ddp.h"
#include "lockstep/nn/batch_norm.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/optim/optimizer.h"
#include "nn/batch_norm_support.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// A model with a module of the user's own.
struct Net : nn::Module {
  nn::Linear first{4, 6, true, DType::f64}, second{6, 2, true, DType::f64};
  nn::BatchNorm norm{6, {.dtype = DType::f64}};
  Tensor forward(const Tensor& x) override { return second(relu(norm(first(x)))); }
  void parts(nn::Parts& p) override {
    p("first", first);
    p("norm", norm);
    p("second", second);
  }
};

/// The model's state after three steps on each rank's rows.
std::vector<Values> train(Net& model, World& world, const Batches& batches) {
  const dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), world);
  optim::SGD optimizer(model.parameters(), {.lr = 0.1, .momentum = 0.9});
  const std::int64_t mine = rows_of(batches, world.rank());
  const std::int64_t first = begin_of(batches, world.rank());
  for (int k = 0; k < 3; ++k) {
    const Tensor x = Tensor::empty({mine, 4}, DType::f64), y = Tensor::empty({mine, 2}, DType::f64);
    for (std::int64_t i = 0; i < x.numel(); ++i)
      x.data<double>()[i] = std::sin(static_cast<double>(100 * k + 4 * first + i));
    for (std::int64_t i = 0; i < y.numel(); ++i)
      y.data<double>()[i] = std::cos(static_cast<double>(100 * k + 2 * first + i));
    optimizer.zero_grad();
    Tape tape;
    tape.backward(nn::mse(model(here(x)), here(y)),
                  Weight{static_cast<double>(mine), static_cast<double>(total_of(batches))});
    optimizer.step();
  }
  std::vector<Values> result;
  for (const auto& [name, value] : model.state_dict())
    if (value.dtype() == DType::f64) result.push_back(values_of(value));
  return result;
}

}  // namespace

TEST_CASE("under DDP on threads, a converted model trains as one process does on the union") {
  const auto trained = [](const Batches& batches) {
    std::mutex mutex;
    std::vector<std::vector<Values>> ranks;
    run_threads(size_of(batches), {}, [&](World& world) {
      manual_seed(4);
      Net model;
      model.to(test_device());
      nn::convert_sync_batchnorm(model, world.communicator());
      auto result = train(model, world, batches);
      const std::lock_guard lock(mutex);
      ranks.push_back(std::move(result));
    });
    for (const auto& rank : ranks) CHECK(rank == ranks[0]);  // bit for bit
    return ranks[0];
  };
  for (const Batches& batches : std::vector<Batches>{{5, 3}, {7, 0, 2}}) {
    CAPTURE(Shape(batches).to_string());
    const auto ranks = trained(batches), whole = trained({total_of(batches)});
    for (std::size_t k = 0; k < whole.size(); ++k) CHECK(distance(ranks[k], whole[k]) < 1e-12);
  }
}
