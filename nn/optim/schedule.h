#pragma once
/// Learning rates that change from step to step: pure functions of the step's number, and a
/// Schedule that sets them.
///
///   optim::Schedule schedule(optimizer, [](std::int64_t step) {
///     return optim::warm_up(step, 100) * optim::cosine(step, 10000);
///   });
///   ...
///   optimizer.step();
///   schedule.step();                     // the learning rate of the next step
///
/// Each function gives the factor on the learning rate that a group began with; steps count from 0.
/// Products of them are schedules, too. They have no state, so a resumed run needs no more than its
/// step's number; a Schedule is a part of a Checkpoint. The formulas are those of torch.optim's
/// classes in their closed form.
///
/// Thread-safety: the functions, any thread; Schedule and Plateau, as the optimizer.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lockstep/core/system/lifetime.h"
#include "lockstep/nn/optim/optimizer.h"
#include "lockstep/nn/state_dict.h"

namespace lockstep::optim {

/// gamma^floor(step / every): StepLR; with `every` 1, ExponentialLR.
double step_decay(std::int64_t step, std::int64_t every, double gamma = 0.1);

/// gamma^(how many of `milestones` are at most `step`): MultiStepLR.
double multi_step_decay(std::int64_t step, std::span<const std::int64_t> milestones,
                        double gamma = 0.1);

/// From `start` to 1 along a line over `steps` steps, then 1: LinearLR.
double warm_up(std::int64_t step, std::int64_t steps, double start = 0.01);

/// From 1 to `end` over `steps` steps, along half a cosine, then `end`: CosineAnnealingLR up to
/// there (Loshchilov & Hutter, "SGDR", ICLR 2017, equation 5, one period).
double cosine(std::int64_t step, std::int64_t steps, double end = 0);

/// Of one_cycle.
struct OneCycle {
  double rising = 0.3;            ///< the part of the steps in which the rate rises
  double div_factor = 25;         ///< it begins at 1 / div_factor
  double final_div_factor = 1e4;  ///< and ends at 1 / (div_factor * final_div_factor)
};
/// The factor on the highest rate: up and down along half cosines, over `steps` steps, at least 2:
/// OneCycleLR (Smith & Topin, "Super-convergence", 2018).
double one_cycle(std::int64_t step, std::int64_t steps, const OneCycle& options = {});

/// Sets the learning rates of an optimizer. Once that has ended, a step throws StateError.
class Schedule {
 public:
  /// Takes the groups' learning rates as the rates that the factors multiply, and sets the first
  /// ones. A group that joins later begins with its own. Throws UsageError for a factor that is
  /// negative or not finite.
  Schedule(Optimizer& optimizer, std::function<double(std::int64_t step)> factor);
  /// After each step of the optimizer; under DDP on all ranks. In a recorded step
  /// (core/gpu/graph.h) each replay does it again.
  void step();
  std::int64_t steps() const;

  nn::StateDict state_dict() const;  ///< "step": i64, and "base_lrs": f64 (groups,)
  /// Sets the learning rates, too. Throws as load_tensors, and UsageError for a rate that is
  /// negative or not finite; then nothing has changed.
  void load_state_dict(const nn::StateDict& state);

 private:
  void apply();
  void note_in_step();
  bool rates_stay() const;

  Optimizer& optimizer_;
  std::weak_ptr<const void> life_ = optimizer_.life();
  std::function<double(std::int64_t)> factor_;
  std::int64_t step_ = 0;
  std::vector<double> base_;
  Lifetime lifetime_;
};

/// Of Plateau.
struct PlateauOptions {
  double factor = 0.1;         ///< (0, 1): on the learning rate when nothing got better
  std::int64_t patience = 10;  ///< that many measurements in a row may be no better
  double threshold = 1e-4;     ///< better: below (1 - threshold) times the best so far
};

/// Lowers the learning rate when a loss no longer falls: ReduceLROnPlateau, mode "min".
///
///   plateau.step(dist::sum_over_ranks(world.communicator(), loss) / samples);
///
/// All ranks must give the same loss: otherwise their learning rates differ, which the next
/// backward refuses.
class Plateau {
 public:
  /// Throws UsageError for options out of their range; a step StateError once the optimizer has
  /// ended.
  explicit Plateau(Optimizer& optimizer, PlateauOptions options = {});
  /// After each measurement. Throws UsageError for NaN, StateError in a step that is recorded.
  void step(double loss);

  nn::StateDict state_dict() const;  ///< "best": f64, "bad": i64
  void load_state_dict(const nn::StateDict& state);

 private:
  Optimizer& optimizer_;
  std::weak_ptr<const void> life_ = optimizer_.life();
  PlateauOptions options_;
  double best_ = infinity;
  std::int64_t bad_ = 0;  // measurements in a row that were no better
};

}  // namespace lockstep::optim
