#include "lockstep/dist/observe/loss_log.h"

#include <numeric>

#include "lockstep/autograd/checkpoint.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/rows.h"
#include "lockstep/core/error.h"
#include "lockstep/core/gpu/graph.h"
#include "lockstep/core/lanes.h"
#include "lockstep/dist/collectives/communicator.h"

namespace lockstep::dist {

void LossLog::add(const Tensor& mean_loss, const Weight& weight) {
  if (recomputing()) return;
  const Tensor all = parts(mean_loss);
  add_parts(all, weight, lane_losses(mean_loss).defined() ? Tape::current()->lanes() : nullptr);
}

Tensor LossLog::parts(const Tensor& mean_loss) {
  check<ShapeError>(mean_loss.defined() && mean_loss.numel() == 1,
                    "[loss log] a loss of {} elements: it has one", mean_loss.numel());
  const Tensor of_lanes = lane_losses(mean_loss);
  return of_lanes.defined() ? of_lanes : mean_loss.detach().view({1});
}

void LossLog::add_parts(const Tensor& parts, const Weight& weight, const Lanes* lanes) {
  check<NotRecordable>(
      !StepGraph::recording(),
      "[loss log] in a step that is recorded: its replays would add nothing. Let the "
      "step return parts(), and give that to add_parts() after each call");
  const auto now = std::chrono::system_clock::now();
  check<StateError>(lanes || weight.lanes == 0,
                    "[loss log] the batch has {} lanes, and the loss knows none: add it as it was "
                    "recorded, while its tape lives",
                    weight.lanes);
  check<ShapeError>(parts.numel() == (lanes ? lanes->count() : 1),
                    "[loss log] {} losses of {} lanes", parts.numel(), lanes ? lanes->count() : 1);
  if (!lanes) {
    steps_.push_back({parts.clone(), {weight.local}, 0, 0, weight.total, now});
    return;
  }
  const auto rows = static_cast<double>(lanes->rows()),
             all = static_cast<double>(lanes->all_rows());
  if (!lanes->have(weight))
    fail<StateError>("[loss log] a weight of {} of {} in {} lanes, for a loss of {} of {} in {}",
                     weight.local, weight.total, weight.lanes, rows, all, lanes->total());
  Added step{parts.clone(), {}, lanes->total(), lanes->first(), all, now};
  for (int k = 0; k < lanes->count(); ++k)
    step.weights.push_back(static_cast<double>(lanes->rows_of(k)));
  steps_.push_back(std::move(step));
}

std::vector<LossLog::Step> LossLog::settle(const World& world) {
  if (steps_.empty()) return {};
  // A row for each step: the sums of all lanes, or of all ranks, and the weight of all of them.
  const auto places = [&](const Added& step) { return step.lanes > 0 ? step.lanes : world.size(); };
  std::int64_t size = 0;
  for (const Added& step : steps_) size += places(step) + 1;
  const Tensor rows = Tensor::zeros({size}, DType::f64);
  double* row = rows.data<double>();
  for (const Added& step : steps_) {
    const std::size_t count = step.weights.size();
    check<StateError>(step.lanes == 0 || lanes_of({world.rank(), world.size()}, step.lanes) ==
                                             LaneRange{step.first, static_cast<int>(count)},
                      "[loss log] losses of {} lanes from {} on, which rank {} of {} does not own: "
                      "they are of another world, forget() them",
                      count, step.first, world.rank(), world.size());
    double* const own = row + (step.lanes > 0 ? step.first : world.rank());
    const Tensor losses = cast(step.losses.to(Device{}), DType::f64);
    for (std::size_t k = 0; k < count; ++k)
      if (step.weights[k] > 0)  // of nothing a loss may be NaN
        own[k] = losses.data<double>()[k] * step.weights[k];
    row[places(step)] = std::accumulate(step.weights.begin(), step.weights.end(), 0.0);
    row += places(step) + 1;
  }
  world.communicator().all_reduce(rows, "losses").wait();
  std::vector<Step> settled;
  row = rows.data<double>();
  for (const Added& step : steps_) {
    double* const weight = row + places(step);
    settled.push_back({std::accumulate(row, weight, 0.0),
                       step.total == Weight::summed ? *weight : step.total, step.when});
    row = weight + 1;
  }
  steps_.clear();
  return settled;
}

}  // namespace lockstep::dist
