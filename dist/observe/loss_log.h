#pragma once
/// The losses of steps, as means over the batches of all ranks:
///
///   dist::LossLog log;
///   for (const data::Batch& batch : loader) {
///     Tape tape;
///     const Tensor loss = nn::cross_entropy(model(batch.x), batch.y);
///     log.add(loss, batch.weight);
///     tape.backward(loss, batch.weight);
///     ...
///   }
///   for (const dist::LossLog::Step& step : log.settle(world)) fmt::print("{}\n", step.mean());
///
/// One all-reduce settles all steps. It sends a row for each step, with a place for each lane
/// (core/lanes.h), or for each rank where there are no lanes. A rank fills its own places and
/// leaves zeros in the others, so what is added up stays exact; then every rank adds up the row
/// from its beginning:
///
///     lane       0    1    2    3    4    5    6    7
///     rank 0    s0   s1   s2   s3    0    0    0    0      s: the lane's loss, times its samples
///     rank 1     0    0    0    0   s4   s5   s6   s7
///               ------------------------------------ +
///               s0   s1   s2   s3   s4   s5   s6   s7      -> sum, in f64
///
/// So all ranks have the same bits; with lanes they are the same on any number of ranks.
///
/// Thread-safety: one thread.

#include <chrono>
#include <cstdint>
#include <vector>

#include "lockstep/core/lanes.h"
#include "lockstep/core/shard.h"
#include "lockstep/core/tensor.h"
#include "lockstep/dist/world/world.h"

namespace lockstep::dist {

class LossLog {
 public:
  using Time = std::chrono::system_clock::time_point;
  struct Step {
    double sum = 0;      ///< of the samples' losses
    double samples = 0;  ///< of all ranks, or what they weigh
    Time when;           ///< add() was called
    double mean() const { return samples > 0 ? sum / samples : 0; }
  };

  /// The mean loss of a step over this rank's samples; `weight` is what backward gets. It is kept
  /// as a copy on its device: reading it here would wait for a GPU at every step. Not collective.
  /// Does nothing while recomputing() (autograd/checkpoint.h): an audit computes losses again.
  ///
  /// With lanes the loss must be on the tape of this thread that recorded it, before or after
  /// backward: its lanes are known there alone. Throws StateError if it is not, or if `weight` is
  /// not that of the tape's batch; ShapeError unless the loss has one element.
  void add(const Tensor& mean_loss, const Weight& weight);

  /// What add() keeps of a loss: those of its lanes, (lanes,), or without lanes the loss, (1,). For
  /// a step that is recorded, which has to return it: the log takes it after each replay.
  ///
  ///   nn::RecordedSteps step([&](const data::Batch& batch) {
  ///     ...
  ///     return dist::LossLog::parts(loss);   // while its tape lives
  ///   });
  ///   log.add_parts(step(batch), batch.weight, batch.lanes.get());
  static Tensor parts(const Tensor& mean_loss);
  /// `lanes`: the batch's; null without lanes. Throws StateError if it does not fit `weight`.
  void add_parts(const Tensor& parts, const Weight& weight, const Lanes* lanes);

  /// Collective: the steps since the last call, in their order. All ranks must have as many. Throws
  /// StateError for losses of lanes that this rank does not own in `world`: they are of an earlier
  /// world (survive.h), in which it owned other lanes. forget() them.
  std::vector<Step> settle(const World& world);

  std::int64_t waiting() const { return std::ssize(steps_); }  ///< steps that are not settled
  void forget() { steps_.clear(); }                            ///< drops these

 private:
  struct Added {
    Tensor losses;                // of each lane; without lanes one
    std::vector<double> weights;  // of these
    int lanes, first;             // of all ranks, and this rank's first one; 0: there are none
    double total;
    Time when;
  };
  std::vector<Added> steps_;
};

}  // namespace lockstep::dist
