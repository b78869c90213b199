#include "loss_log.h"

#include "lockstep/dist/collectives/communicator.h"

namespace train_mlp {

using namespace lockstep;

void LossLog::add(const Tensor& mean_loss, const Weight& weight) {
  steps_.push_back({mean_loss.detach(), weight, std::chrono::system_clock::now()});
}

std::vector<LossLog::Loss> LossLog::settle(const World& world) {
  if (steps_.empty()) return {};
  const Tensor sums = Tensor::zeros({static_cast<std::int64_t>(steps_.size())}, DType::f64);
  double* const sum = sums.data<double>();
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const auto& [loss, weight, when] = steps_[i];
    sum[i] = weight.local > 0 ? loss.item() * weight.local : 0;
  }
  world.communicator().all_reduce(sums, "losses").wait();
  std::vector<Loss> losses;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    losses.push_back({sum[i] / steps_[i].weight.total, steps_[i].when});
    sum_ += sum[i];
    samples_ += steps_[i].weight.total;
  }
  steps_.clear();
  return losses;
}

}  // namespace train_mlp
