// A training whose job may lose ranks, and which does one thing that does not go together with
// that, or leaves out one that it needs.
//
//   survivor DEED
//
// In the third step rank 1, as the launcher counts, kills itself, if nobody has done so before.

#include <fmt/format.h>
#include <signal.h>

#include <functional>
#include <optional>
#include <string>

#include "lockstep/launch/report.h"
#include "lockstep/lockstep.h"

using namespace lockstep;

namespace {

data::TensorDataset samples() {
  manual_seed(5);
  const Tensor x = Tensor::randn({64, 6}), y = Tensor::empty({64}, DType::i64);
  for (std::int64_t i = 0; i < 64; ++i) y.data<std::int64_t>()[i] = i * i % 4;
  return data::TensorDataset({{"x", x}, {"y", y}});
}

int number_of(const World& world) { return world.members()[dist::index(world.rank())]; }

/// What the program's body does at its beginning, under DDP.
void do_deed(const std::string& deed, const World& world, optim::Optimizer& optimizer,
             dist::DistributedDataParallel& ddp) {
  if (deed == "shard") optimizer.shard(ddp);
  if (deed == "overlap") const optim::Overlap overlap(optimizer, ddp);
  if (deed == "trace") const dist::Trace trace(world, "/nowhere");
  if (deed == "hash-trace") const dist::HashTrace trace(world, "/nowhere/trace");
  if (deed == "async-checkpoint") nn::Checkpoint(ddp).save("/nowhere/file", {.async = true});
}

void run(const std::string& deed) {
  World world = World::join({.comm = deed == "mpi" ? "mpi" : "auto", .timeout = dist::Seconds(20)});
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
  std::optional<dist::DistributedDataParallel> outer;
  if (deed == "ddp-outside") outer.emplace(p, model.buffers(), world);
  if (deed == "sync-outside") nn::convert_sync_batchnorm(model, world);
  const auto body = [&](World& now) {
    optimizer.zero_grad();
    if (deed != "no-share") shared.share(now, deed == "no-progress" ? 0 : step);
    if (deed != "sync-outside") nn::convert_sync_batchnorm(model, now);
    dist::DdpOptions options;
    if (deed == "power-sgd") options.hook = dist::power_sgd();
    if (deed == "ddp-kept") outer.emplace(p, model.buffers(), now, options);
    std::optional<dist::DistributedDataParallel> own;
    if (!outer) own.emplace(p, model.buffers(), now, options);
    do_deed(deed, now, optimizer, outer ? *outer : *own);
    for (; epoch < 10; ++epoch, position = 0)
      for (const data::Batch& batch : data::Loader(
               train, {.batch = 16, .begin = position, .lanes = 4}, now, static_cast<int>(epoch))) {
        if (step == 2 && number_of(now) == 1) ::raise(SIGKILL);
        Tape tape;
        tape.backward(nn::cross_entropy(model(batch.x), batch.y), batch.weight);
        optimizer.step();
        optimizer.zero_grad();
        const bool wrong = step == 5 && number_of(now) == 3;
        if (deed == "wrong" && wrong) p[0].value().data<float>()[0] += 1;
        position = batch.position;
        ++step;
        const bool forgets = deed == "no-mark" || (deed == "one-no-mark" && number_of(now) == 2);
        if (!forgets) shared.mark();
      }
  };
  if (deed == "not-called") return body(world);
  survive(world, body);
}

}  // namespace

int main(int argc, char** argv) {
  return run_main([&] {
    check<UsageError>(argc == 2, "survivor DEED");
    run(argv[1]);
    return 0;
  });
}
