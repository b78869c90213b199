#pragma once
/// The exponential moving average of weights, which often does better on unseen data than the
/// weights themselves (Polyak & Juditsky, "Acceleration of stochastic approximation by averaging",
/// 1992, in the form of torch.optim.swa_utils.get_ema_multi_avg_fn):
///
///   optim::Ema ema(model.parameters(), 0.999);
///   ...
///   optimizer.step();
///   ema.update();                    // average = 0.999 * average + 0.001 * value
///   ...
///   {
///     optim::Ema::Applied applied(ema);   // the model has the averages while this lives
///     evaluate(model);
///   }
///
/// Copies share the averages, also with an object that was moved from.
/// Under DDP every rank computes the same averages from the same values: nothing travels.
/// Thread-safety: as the parameters.

#include <memory>
#include <string_view>
#include <vector>

#include "lockstep/autograd/parameter.h"
#include "lockstep/core/system/lifetime.h"
#include "lockstep/nn/state_dict.h"

namespace lockstep::optim {

class Ema {
  struct State;

 public:
  /// The averages begin as the values. Throws UsageError unless 0 <= decay < 1, and as
  /// check_each_once.
  Ema(std::vector<Parameter> parameters, double decay);
  Ema(const Ema&) = default;
  Ema& operator=(const Ema&) = default;

  /// After each step of the optimizer. Throws StateError while the averages are applied.
  void update();

  /// Exchanges the model's values with the averages, and back at its end. Meanwhile a step, or a
  /// Checkpoint of the model, would take the averages for the values: both throw StateError.
  /// The Ema may end, or be moved, before this does.
  class [[nodiscard]] Applied {
   public:
    explicit Applied(Ema& ema) : state_(ema.state_) { exchange(*state_, true); }
    ~Applied() { exchange(*state_, false); }
    Applied(const Applied&) = delete;
    Applied& operator=(const Applied&) = delete;

   private:
    std::shared_ptr<State> state_;
  };

  /// The averages, by the parameters' names; they share memory. Throws StateError while they are
  /// applied, and for names that are missing or not unique.
  nn::StateDict state_dict() const;
  void load_state_dict(const nn::StateDict& state);

 private:
  struct State {
    std::vector<Parameter> parameters;
    std::vector<Tensor> averages{};
    bool applied = false;
  };
  static void check_values(const State& state, std::string_view operation);
  static void exchange(State& state, bool apply);

  std::shared_ptr<State> state_;
  double decay_;
  Lifetime life_;
};

}  // namespace lockstep::optim
