// `bench/worlds.sh` runs this once for each world: trains a network with all that usually depends
// on the number of ranks, and prints the SHA-256 of its parameters and buffers.
//
// The network: Linear, BatchNorm of all ranks' samples, ReLU, dropout, Linear. The training: Adam,
// clipped gradients, two batches to a step, last batches that are short and cut unevenly.

#include <fmt/format.h>

#include <optional>

#include "lockstep/launch/report.h"
#include "lockstep/lockstep.h"
#include "lockstep/samples/common/ranks.h"
#include "lockstep/tools/cli.h"

namespace {

using namespace lockstep;

struct Options : samples::RunOptions {
  std::string data = LOCKSTEP_SAMPLES_DATA "/digits";
  int epochs = 3, lanes = 8;
  std::int64_t width = 64;   ///< of the hidden layer
  std::int64_t batch = 100;  ///< samples of all ranks
};

std::optional<Options> parse(int argc, const char* const* argv) {
  Options o;
  const cli::Check whole = cli::whole_number<int>();
  cli::App app("One world's hash, for the table of docs/any-world.md", "bench_worlds");
  samples::add_options(app, o, "1");
  app.add_option("--data", o.data, "Directory with images and labels in the IDX format");
  app.add_option("--epochs", o.epochs, "(3)").check(whole);
  app.add_option("--lanes", o.lanes, "0: none (8)").check(whole);
  app.add_option("--width", o.width, "Of the hidden layer (64)").check(whole);
  app.add_option("--batch", o.batch, "Samples of all ranks (100)").check(whole);
  if (!samples::parse(app, o, argc, argv)) return {};
  check<UsageError>(o.epochs > 0, "--epochs must be positive, got {}", o.epochs);
  check<UsageError>(o.width > 0, "--width must be positive, got {}", o.width);
  check<UsageError>(o.batch > 0, "--batch must be positive, got {}", o.batch);
  return o;
}

std::string train(const Options& o, World& world) {
  const data::TensorDataset set = data::load_idx(o.data).train;
  const Device device = o.device.choose(world.local_rank());
  manual_seed(0);
  nn::Sequential model{nn::Linear(set["x"].size(1), o.width), nn::BatchNorm(o.width), nn::ReLU(),
                       nn::Dropout(0.2), nn::Linear(o.width, 10)};
  model.to(device);
  nn::convert_sync_batchnorm(model, world);
  optim::Adam optimizer(model.parameters(), {.lr = 0.002});
  dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), world);
  for (int epoch = 0; epoch < o.epochs; ++epoch) {
    const data::Loader loader(
        set, {.total_batch = o.batch, .shuffle = true, .lanes = o.lanes, .device = device}, world,
        epoch);
    std::int64_t done = 0;
    for (const data::Batch& batch : loader) {
      const bool steps = ++done % 2 == 0 || done == loader.steps();
      {
        Tape tape;
        tape.backward(nn::cross_entropy(model(batch.x), batch.y), batch.weight, {.sync = steps});
      }
      if (!steps) continue;
      optim::clip_grad_norm(model.parameters(), 1.0);
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  std::string all;
  for (const auto& [name, tensor] : model.state_dict()) all += nn::sha256_of(tensor);
  const std::vector<std::uint8_t> bytes(all.begin(), all.end());
  return nn::sha256_of(Tensor::of<std::uint8_t>({std::ssize(bytes)}, bytes));
}

int run(int argc, char** argv) {
  const std::optional<Options> options = parse(argc, argv);
  if (!options) return 0;
  return samples::run_ranks(*options, 1, argc, argv, [&](World& world) {
    const std::string hash = train(*options, world);
    if (world.rank() == 0) fmt::print("{}\n", hash);
  });
}

}  // namespace

int main(int argc, char** argv) {
  return run_main([&] { return run(argc, argv); });
}
