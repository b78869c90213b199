// `resumed_run KIND PATH`, a rank of a job: trains, saves its state again and again, and goes on
// from what it finds there. At the end rank 0 prints a digest of all that was trained. KIND:
//   dropout   inputs and dropped elements are drawn by each rank's own generators
//   local     local SGD: four steps of each rank by itself, then the mean
// With "async" after it, a thread writes the files.

#include <fmt/format.h>

#include <filesystem>

#include "lockstep/launch/report.h"
#include "lockstep/lockstep.h"

using namespace lockstep;

namespace {

void run(const std::string& kind, const std::string& path, bool async) {
  World world = World::join();
  manual_seed(1 + static_cast<std::uint64_t>(world.rank()));
  nn::Sequential model{nn::Linear(6, 16), nn::ReLU(), nn::Dropout(kind == "dropout" ? 0.3 : 0),
                       nn::Linear(16, 3)};
  optim::SGD optimizer(model.parameters(), {.lr = 0.05, .momentum = 0.9});
  dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), world);
  nn::Checkpoint checkpoint(ddp);
  std::int64_t step = 0;
  checkpoint.add("model", model);
  checkpoint.add("optimizer", optimizer);
  checkpoint.add("step", step);
  if (std::filesystem::exists(path)) checkpoint.load(path);
  const bool local = kind == "local";
  while (step++ < 200) {
    Tape tape;
    const Tensor x = Tensor::randn({5, 6});
    tape.backward(mean(square(model(x) - slice(x, 1, 0, 3))), Weight{5}, {.sync = !local});
    local ? optimizer.step(optim::local) : optimizer.step();
    optimizer.zero_grad();
    if (local && step % 4 == 0) ddp.average_parameters();
    if (step % 8 == 0) checkpoint.save(path, {.async = async});
  }
  checkpoint.wait();
  ddp.check_replicas();
  if (world.rank() == 0) fmt::print("digest={}\n", parameter_digest(model.parameters()));
}

}  // namespace

int main(int argc, char** argv) {
  return run_main([&] {
    check<UsageError>(argc >= 3, "resumed_run KIND PATH [async]");
    run(argv[1], argv[2], argc > 3);
    return 0;
  });
}
