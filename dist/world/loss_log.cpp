#include "lockstep/dist/world/loss_log.h"

#include <numeric>

#include "lockstep/autograd/lanes/lane_losses.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/error.h"
#include "lockstep/core/lanes.h"
#include "lockstep/dist/collectives/communicator.h"

namespace lockstep::dist {

void LossLog::add(const Tensor& mean_loss, const Weight& weight) {
  check<ShapeError>(mean_loss.defined() && mean_loss.numel() == 1,
                    "[loss log] a loss of {} elements: it has one", mean_loss.numel());
  Added step{
      mean_loss.detach().view({1}), {weight.local}, weight, std::chrono::system_clock::now()};
  if (weight.lanes > 0) {
    step.losses = lane_losses(mean_loss);
    check<StateError>(step.losses.defined(),
                      "[loss log] the batch has {} lanes, and the loss knows none: add it as it "
                      "was recorded, while its tape lives",
                      weight.lanes);
    step.weights.clear();
    const Lanes& lanes = *Tape::current()->lanes();
    for (int k = 0; k < lanes.count(); ++k)
      step.weights.push_back(static_cast<double>(lanes.rows_of(k)));
  }
  steps_.push_back(std::move(step));
}

std::vector<LossLog::Step> LossLog::settle(const World& world) {
  if (steps_.empty()) return {};
  // A row for each step: the sums of all lanes, or of all ranks, and the weight of all of them.
  const auto places = [&](const Added& step) {
    return step.weight.lanes > 0 ? step.weight.lanes : world.size();
  };
  std::int64_t size = 0;
  for (const Added& step : steps_) size += places(step) + 1;
  const Tensor rows = Tensor::zeros({size}, DType::f64);
  double* row = rows.data<double>();
  for (const Added& step : steps_) {
    const int first = step.weight.lanes > 0
                          ? lanes_of({world.rank(), world.size()}, step.weight.lanes).first
                          : world.rank();
    const Tensor losses = cast(step.losses.to(Device{}), DType::f64);
    for (std::size_t k = 0; k < step.weights.size(); ++k)
      if (step.weights[k] > 0)  // of nothing a loss may be NaN
        row[first + static_cast<int>(k)] = losses.data<double>()[k] * step.weights[k];
    row[places(step)] = step.weight.local;
    row += places(step) + 1;
  }
  world.communicator().all_reduce(rows, "losses").wait();
  std::vector<Step> settled;
  row = rows.data<double>();
  for (const Added& step : steps_) {
    double* const weight = row + places(step);
    settled.push_back({std::accumulate(row, weight, 0.0),
                       step.weight.total == Weight::summed ? *weight : step.weight.total,
                       step.when});
    row = weight + 1;
  }
  steps_.clear();
  return settled;
}

}  // namespace lockstep::dist
