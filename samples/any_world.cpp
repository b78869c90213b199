// `./lockstep sample any_world`: the same training on 1, 2, 3, 4, 5 and 8 ranks ends with the same
// bits, if batches are cut into lanes (core/lanes.h), and not otherwise. So does the loss.
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

/// What a training ends with: the SHA-256 of the parameters, and the last epoch's mean loss.
struct Trained {
  std::string hash;
  double loss = 0;
  bool operator==(const Trained&) const = default;
};

/// One rank's training.
Trained train(World& world, const data::TensorDataset& digits, int lane_count) {
  manual_seed(0);
  nn::Sequential model{nn::Linear(64, 64), nn::BatchNorm(64), nn::ReLU(), nn::Dropout(0.2),
                       nn::Linear(64, 10)};
  nn::convert_sync_batchnorm(model, world);
  optim::Adam optimizer(model.parameters(), {.lr = 0.002});
  dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), world);
  Trained result;
  for (int epoch = 0; epoch < epochs; ++epoch) {
    dist::LossLog losses;
    for (const data::Batch& part : data::Loader(
             digits, {.total_batch = batch, .shuffle = true, .lanes = lane_count}, world, epoch)) {
      Tape tape;
      const Tensor loss = nn::cross_entropy(model(part.x), part.y);
      losses.add(loss, part.weight);
      tape.backward(loss, part.weight);
      optim::clip_grad_norm(model.parameters(), 1.0);
      optimizer.step();
      optimizer.zero_grad();
    }
    double sum = 0;
    for (const dist::LossLog::Step& step : losses.settle(world)) sum += step.sum;
    result.loss = sum / static_cast<double>(digits.size());
  }
  result.hash = parameter_digest(model.parameters());
  return result;
}

Trained trained(int ranks, const data::TensorDataset& digits, int lane_count) {
  Trained result;
  std::mutex mutex;
  run_threads(ranks, {}, [&](World& world) {
    const Trained of_rank = train(world, digits, lane_count);
    const std::lock_guard lock(mutex);
    result = of_rank;  // the replicas are equal: the end of DDP has compared them
  });
  return result;
}

}  // namespace

int main() {
  return run_main([] {
    const data::TensorDataset digits = data::load_idx(LOCKSTEP_SAMPLES_DATA "/digits").train;
    fmt::print("{} epochs of {} digits, batches of {}\n\n", epochs, digits.size(), batch);
    fmt::print("ranks  {} lanes: SHA-256, loss            without lanes\n", lanes);
    Trained first;
    bool same = true;
    for (const int ranks : {1, 2, 3, 4, 5, 8}) {
      const Trained with = trained(ranks, digits, lanes), without = trained(ranks, digits, 0);
      if (ranks == 1) first = with;
      same = same && with == first;
      fmt::print("{:>5}  {}... {:<18}  {}... {}\n", ranks, with.hash.substr(0, 12), with.loss,
                 without.hash.substr(0, 12), without.loss);
    }
    fmt::print("\n{}\n", same ? "With lanes, every world ends with the same bits."
                              : "The worlds differ: this should not be.");
    return same ? 0 : 1;
  });
}
