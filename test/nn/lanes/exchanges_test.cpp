// What ranks exchange beside gradients, in trainings with lanes.

#include <doctest/doctest.h>

#include <mutex>
#include <string>

#include "lockstep/lockstep.h"

using namespace lockstep;

namespace lane_exchanges {
namespace {

constexpr int lanes = 8;
constexpr std::int64_t batch_size = 19;

data::TensorDataset make_data() {
  manual_seed(5);
  const Tensor y = Tensor::empty({57}, DType::i64);
  for (std::int64_t i = 0; i < 57; ++i) y.data<std::int64_t>()[i] = (i * i + i / 3) % 4;
  return data::TensorDataset({{"x", Tensor::randn({57, 6})}, {"y", y}});
}

/// Samples beside a table of classes, whose rows are normalized over the classes.
struct TwoTowers : nn::Module {
  nn::Linear samples{6, 5};
  nn::Sequential classes{nn::Linear(3, 5), nn::BatchNorm(5)};
  Parameter table{Tensor::randn({4, 3})};

  void visit(nn::Visitor& p) override {
    p("samples", samples);
    p("classes", classes);
    p("table", table);
  }
  Tensor forward(const Tensor& x) override {
    return matmul(samples(x), classes(Tensor(table)), {.transpose_b = true});
  }
};

/// f(world, model, ddp, batch) for each step; the hash of all ranks' parameters and buffers.
template <class F>
std::string train(int ranks, const F& step) {
  std::string digest;
  std::mutex mutex;
  run_threads(ranks, {}, [&](World& world) {
    manual_seed(9);
    TwoTowers model;
    nn::convert_sync_batchnorm(model, world);
    dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), world);
    optim::SGD optimizer(model.parameters(), {.lr = 0.1});
    for (const data::Batch& batch :
         data::Loader(make_data(), {.batch = batch_size, .lanes = lanes}, world)) {
      step(world, model, ddp, batch);
      optimizer.step();
      optimizer.zero_grad();
    }
    std::vector<Parameter> state = model.parameters();
    for (const Buffer& buffer : model.buffers())
      if (buffer.value.dtype() == DType::f32) state.emplace_back(buffer.value.clone());
    const std::lock_guard lock(mutex);
    const std::string mine = parameter_digest(state);
    CHECK((digest.empty() || digest == mine));
    digest = mine;
  });
  return digest;
}

}  // namespace

TEST_SUITE_BEGIN("not-late");  // about ranks

TEST_CASE("lanes: SyncBatchNorm over what is made of parameters alone asks no other rank") {
  const auto step = [](World&, TwoTowers& model, dist::DistributedDataParallel&,
                       const data::Batch& batch) {
    Tape tape;
    tape.backward(nn::cross_entropy(model(batch.x), batch.y), batch.weight);
  };
  const std::string one = train(1, step);
  for (const int ranks : {2, 3, 5, 8}) CHECK(train(ranks, step) == one);
}

TEST_CASE("lanes: what a rank made of its samples together stays that in an all_gather") {
  for (const int ranks : {1, 2}) {
    const auto step = [&](World& world, TwoTowers& model, dist::DistributedDataParallel&,
                          const data::Batch& batch) {
      const Tensor mine = sum(batch.x, 0, keepdim);
      const Tensor all = Tensor::empty({world.size(), 6});
      world.communicator().all_gather(mine, all, "sums").wait();
      CHECK(all.row_origin().mixed_by() == "sum");
      Tape tape;
      CHECK_THROWS_WITH_AS((void)model(batch.x - sum(all, 0)), doctest::Contains("made by [sum]"),
                           StateError);
      tape.backward(nn::cross_entropy(model(batch.x), batch.y), batch.weight);
    };
    (void)train(ranks, step);
  }
}

TEST_CASE("lanes: parameters that ranks have trained apart are not averaged") {
  const auto step = [](World&, TwoTowers& model, dist::DistributedDataParallel& ddp,
                       const data::Batch& batch) {
    Tape tape;
    tape.backward(nn::cross_entropy(model(batch.x), batch.y), batch.weight);
    CHECK_THROWS_WITH_AS(ddp.average_parameters(),
                         doctest::Contains("[average_parameters] the batch has lanes"), StateError);
  };
  (void)train(2, step);
}

}  // namespace lane_exchanges

TEST_SUITE_END();
