#pragma once
/// The losses of an epoch's steps: on each rank the sum over its own samples, then over all ranks.

#include <chrono>
#include <vector>

#include "lockstep/core/shard.h"
#include "lockstep/core/tensor.h"
#include "lockstep/dist/world/world.h"

namespace train_mlp {

class LossLog {
 public:
  using Time = std::chrono::system_clock::time_point;
  struct Loss {
    double mean;  ///< over the global batch
    Time when;    ///< the step was taken
  };

  // Kept as a tensor: on a GPU, reading it here would wait for every step.
  void add(const lockstep::Tensor& mean_loss, const lockstep::Weight& weight);

  /// The steps since the last call of settle().
  std::size_t waiting() const { return steps_.size(); }
  /// Collective. Their losses.
  std::vector<Loss> settle(const lockstep::World& world);

  /// Drops the steps that are not settled: they are not taken.
  void forget() { steps_.clear(); }
  /// The sums of this epoch, to be set in a world that goes on.
  double& sum() { return sum_; }
  double& samples_sum() { return samples_; }

  /// Of all steps that are settled: the sample-weighted mean, and the samples.
  double mean() const { return samples_ > 0 ? sum_ / samples_ : 0; }
  double samples() const { return samples_; }

 private:
  struct Step {
    lockstep::Tensor loss;
    lockstep::Weight weight;
    Time when;
  };
  std::vector<Step> steps_;
  double sum_ = 0, samples_ = 0;
};

}  // namespace train_mlp
