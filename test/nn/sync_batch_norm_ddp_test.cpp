// SyncBatchNorm under DistributedDataParallel, with ranks as threads.

#include <doctest/doctest.h>

#include <cmath>
#include <mutex>

#include "lockstep/core/generator.h"
#include "lockstep/dist/ddp/ddp.h"
#include "lockstep/nn/batch_norm.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/optim/optimizer.h"
#include "nn/batch_norm_support.h"
#include "support/small_models.h"

using namespace lockstep;
using namespace lockstep::test;

namespace sync_batch_norm_ddp {
namespace {

/// The model's state after three steps on each rank's rows.
std::vector<Values> train(NormalizedNet& model, World& world, const Batches& batches) {
  const dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), world);
  optim::SGD optimizer(model.parameters(), {.lr = 0.1, .momentum = 0.9});
  const std::int64_t mine = rows_of(batches, world.rank());
  const std::int64_t first = begin_of(batches, world.rank());
  for (int k = 0; k < 3; ++k) {
    const Tensor x = Tensor::empty({mine, 3}, DType::f64), y = Tensor::empty({mine, 2}, DType::f64);
    for (std::int64_t i = 0; i < x.numel(); ++i)
      x.data<double>()[i] = std::sin(static_cast<double>(100 * k + 3 * first + i));
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
      NormalizedNet model;
      model.to(test_device());
      nn::convert_sync_batchnorm(model, world);
      auto result = train(model, world, batches);
      const std::lock_guard lock(mutex);
      ranks.push_back(std::move(result));
    });
    for (const auto& rank : ranks) CHECK(rank == ranks[0]);  // bit for bit
    return ranks[0];
  };
  for (const Batches& batches : std::vector<Batches>{{5, 3}, {7, 0, 2}}) {
    CAPTURE(text_of(batches));
    const auto ranks = trained(batches), whole = trained({total_of(batches)});
    for (std::size_t k = 0; k < whole.size(); ++k) CHECK(distance(ranks[k], whole[k]) < 1e-12);
  }
}

TEST_CASE("the layers' messages and the buckets do not stand in one line: branches may differ") {
  // Rank 0 goes by `left`, rank 1 by `right`, rank 2 by neither: so the bucket of each (a bucket
  // per parameter) is launched before the layer's backward message on some ranks, and after it on
  // others.
  struct Branches : nn::Module {
    nn::BatchNorm norm{4, {.dtype = DType::f64}};
    nn::Linear left{4, 4, false, DType::f64}, right{4, 4, false, DType::f64};
    nn::Linear first{4, 4, true, DType::f64};
    int branch = 0;
    Tensor forward(const Tensor& x) override {
      const Tensor h = norm(first(x));
      return branch == 0 ? left(h) : branch == 1 ? right(h) : h;
    }
    void visit(nn::Visitor& p) override {
      p("norm", norm);
      p("left", left);
      p("right", right);
      p("first", first);
    }
  };
  run_threads(3, {}, [](World& world) {
    manual_seed(3);
    Branches model;
    nn::convert_sync_batchnorm(model, world);
    const dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), world,
                                            {.bucket_cap_mb = 1e-6});
    for (int step = 0; step < 6; ++step) {
      for (const Parameter& p : model.parameters()) p.zero_grad();
      model.branch = (world.rank() + step) % 3;
      Tensor x = Tensor::empty({2 + world.rank(), 4}, DType::f64);
      for (std::int64_t i = 0; i < x.numel(); ++i)
        x.data<double>()[i] = std::sin(static_cast<double>(10 * world.rank() + i));
      Tape tape;
      tape.backward(mean(model(x)));
      check<Error>(model.left.weight.gradient().defined(), "left has no gradient");
      check<Error>(model.first.weight.gradient_state() == GradientState::synchronized, "first");
    }
  });
}

}  // namespace sync_batch_norm_ddp
