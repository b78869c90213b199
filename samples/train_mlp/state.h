#pragma once
/// What a run keeps when its world ends: all that the next one needs (dist/world/survive.h).

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/lockstep.h"
#include "options.h"
#include "train.h"

namespace train_mlp {

struct State {
  /// Not collective. Throws DataError for data that cannot be read or do not fit the layers.
  State(const Options& options, const lockstep::World& world);
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  /// Collective: gives all ranks the state of the rank that is furthest, as it was after its last
  /// step. A step that was begun after that is void. Before a DDP is made, which takes rank 0's
  /// parameters.
  void share(const lockstep::World& world);
  /// A step was taken, or a checkpoint was loaded: from here on it is not repeated.
  void mark() { shared_.mark(); }

  const Options& options;
  lockstep::data::TrainTest set;
  std::vector<std::int64_t> layers;
  lockstep::Device device;
  lockstep::nn::Sequential model;
  std::unique_ptr<lockstep::optim::Optimizer> optimizer;
  std::optional<lockstep::optim::GradScaler> scaler;  // of f16
  // Where the run stands: what the checkpoint has besides model and optimizer. `position` counts
  // the samples that this epoch has taken.
  std::int64_t epoch = 0, position = 0, step = 0;
  lockstep::dist::LossLog log;
  double loss_sum = 0, loss_samples = 0;  // of this epoch
  Result result;
  double seconds = 0, samples = 0;  // of all training steps
  std::uint64_t bytes = 0;

 private:
  /// The losses that are known, as a part of what the ranks share.
  struct Losses {
    State& state;
    lockstep::nn::StateDict state_dict() const;
    void load_state_dict(const lockstep::nn::StateDict& shared);
  };

  Losses losses_{*this};
  lockstep::nn::Checkpoint shared_;
};

}  // namespace train_mlp
