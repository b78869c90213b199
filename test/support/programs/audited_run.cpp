// A training whose ranks are audited and survive, with a fault in one of them.
//
//   audited_run VICTIM LANE FIRST always|once
//
// From step FIRST on, the rank that was VICTIM at the start has one wrong element in a gradient of
// LANE, whenever it computes that; or only once. Rank 0 prints the SHA-256 of the model and the
// number of ranks that are left.

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "lockstep/dist/world/survive.h"
#include "lockstep/launch/report.h"
#include "lockstep/lockstep.h"
#include "support/planted.h"

using namespace lockstep;

namespace {

data::TensorDataset samples() {
  manual_seed(5);
  const Tensor x = Tensor::randn({200, 6}), y = Tensor::empty({200}, DType::i64);
  for (std::int64_t i = 0; i < 200; ++i) y.data<std::int64_t>()[i] = i * i % 4;
  return data::TensorDataset({{"x", x}, {"y", y}});
}

void run(int victim, int faulty_lane, std::int64_t first, bool always) {
  bool seen = false;
  World world = World::join({.timeout = dist::Seconds(20)});
  const data::TensorDataset train = samples();
  manual_seed(0);
  nn::Sequential model{nn::Linear(6, 8), nn::BatchNorm(8), nn::ReLU(), nn::Linear(8, 4)};
  const std::vector<Parameter> p = model.parameters();
  optim::Adam optimizer(p, {.lr = 0.01});
  std::int64_t epoch = 0, position = 0, step = 0;
  nn::Checkpoint shared;
  shared.add("model", model);
  shared.add("optimizer", optimizer);
  shared.add("epoch", epoch);
  shared.add("position", position);
  shared.add("step", step);
  survive(world, [&](World& now) {
    optimizer.zero_grad();
    shared.share(now, step);
    nn::convert_sync_batchnorm(model, now);
    dist::DistributedDataParallel ddp(p, model.buffers(), now);
    dist::Audit audit(ddp, {.every = 2, .taken = step});
    const bool is_victim = now.members()[static_cast<std::size_t>(now.rank())] == victim;
    const auto plant = [&](int lane, int operand, const Tensor& gradient) {
      if (!is_victim || lane != faulty_lane || operand != 1 || step + 1 < first) return;
      if (always || !std::exchange(seen, true)) gradient.data<float>()[9] += 1;
    };
    for (; epoch < 10; ++epoch, position = 0) {
      const data::Loader loader(train,
                                {.batch = 40, .shuffle = true, .begin = position, .lanes = 8}, now,
                                static_cast<int>(epoch));
      for (const data::Batch& batch : loader) {
        (void)audit.backward(loader, batch, [&](const data::Batch& b) {
          const Tensor h = model[2](model[1](model[0](b.x)));
          return nn::cross_entropy(test::planted_linear(h, p[4], p[5], plant), b.y);
        });
        optimizer.step();
        optimizer.zero_grad();
        position = batch.position;
        ++step;
        shared.mark();
      }
    }
    if (now.rank() == 0) fmt::print("{} {}\n", parameter_digest(p), now.size());
    std::fflush(stdout);
  });
}

}  // namespace

int main(int argc, char** argv) {
  return run_main([&] {
    check<UsageError>(argc == 5, "audited_run VICTIM LANE FIRST always|once");
    run(std::atoi(argv[1]), std::atoi(argv[2]), std::atoi(argv[3]),
        argv[4] == std::string("always"));
    return 0;
  });
}
