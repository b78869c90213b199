// `./lockstep sample any_world`: the same training on 1, 2, 3, 4, 5 and 8 ranks ends with the same
// bits, if batches are cut into lanes (core/lanes.h), and not otherwise.
//
// The model has what usually depends on the ranks: statistics of batches, dropout, uneven last
// batches. The only line that differs is `.lanes = 8`.

#include <lockstep/launch/report.h>
#include <lockstep/lockstep.h>

#include <mutex>

using namespace lockstep;

namespace {

constexpr int epochs = 3, lanes = 8;
constexpr std::int64_t batch = 100;  // samples of all ranks in a step

/// One rank's training. Returns the SHA-256 of the parameters.
std::string train(World& world, const data::TensorDataset& digits, int lane_count) {
  manual_seed(0);
  nn::Sequential model{nn::Linear(64, 64), nn::BatchNorm(64), nn::ReLU(), nn::Dropout(0.2),
                       nn::Linear(64, 10)};
  nn::convert_sync_batchnorm(model, world);
  optim::Adam optimizer(model.parameters(), {.lr = 0.002});
  dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), world);
  for (int epoch = 0; epoch < epochs; ++epoch)
    for (const data::Batch& part : data::Loader(
             digits, {.total_batch = batch, .shuffle = true, .lanes = lane_count}, world, epoch)) {
      Tape tape;
      tape.backward(nn::cross_entropy(model(part.x), part.y), part.weight);
      optim::clip_grad_norm(model.parameters(), 1.0);
      optimizer.step();
      optimizer.zero_grad();
    }
  return parameter_digest(model.parameters());
}

std::string hash(int ranks, const data::TensorDataset& digits, int lane_count) {
  std::string result;
  std::mutex mutex;
  run_threads(ranks, {}, [&](World& world) {
    const std::string digest = train(world, digits, lane_count);
    const std::lock_guard lock(mutex);
    result = digest;  // the replicas are equal: the end of DDP has compared them
  });
  return result;
}

}  // namespace

int main() {
  return run_main([] {
    const data::TensorDataset digits = data::load_idx(LOCKSTEP_SAMPLES_DATA "/digits").train;
    fmt::print("{} epochs of {} digits, batches of {}\n\n", epochs, digits.size(), batch);
    fmt::print("ranks  {} lanes, SHA-256 of the model   without lanes\n", lanes);
    std::string first;
    bool same = true;
    for (const int ranks : {1, 2, 3, 4, 5, 8}) {
      const std::string with = hash(ranks, digits, lanes), without = hash(ranks, digits, 0);
      if (first.empty()) first = with;
      same = same && with == first;
      fmt::print("{:>5}  {}...        {}...\n", ranks, with.substr(0, 24), without.substr(0, 12));
    }
    fmt::print("\n{}\n", same ? "With lanes, every world ends with the same bits."
                              : "The worlds differ: this should not be.");
    return same ? 0 : 1;
  });
}
