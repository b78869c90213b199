#pragma once
/// Loss scaling for training in f16: Micikevicius et al., "Mixed precision training", ICLR 2018,
/// section 3.2, with PyTorch's rule for the scale.
///
///   optim::GradScaler scaler;
///   ...
///   tape.backward(scaler.scale(loss), weight);
///   scaler.unscale(optimizer);                              // only if gradients are clipped
///   optim::clip_grad_norm(model.parameters(), 1.0);
///   scaler.step(optimizer);
///   scaler.update();
///   optimizer.zero_grad();
///
/// Why. The smallest number of f16 above 0 is 6e-8: small gradients become 0. The scaled loss has
/// larger ones. step() divides them by the scale. If one of them is infinite or NaN, the scale was
/// too large: step() leaves this step out, and update() lowers the scale.
///
/// bf16 has the exponents of f32 and needs no scaler.
///
/// Under DDP nothing is asked of the other ranks: an infinite contribution makes the sum infinite
/// or NaN, and all ranks have the same sum. So parameters that are kept local are refused beside
/// managed ones. A communication hook that keeps something of the gradients keeps them scaled, and
/// must itself leave out what is not finite.
///
/// Thread-safety: as the optimizer's.

#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "lockstep/nn/optim/optimizer.h"
#include "lockstep/nn/state_dict.h"

namespace lockstep::optim {

/// The same on all ranks.
struct GradScalerOptions {
  double scale = 65536;                 ///< at first; positive
  double growth_factor = 2;             ///< (1, inf): on the scale, after `growth_interval` ...
  std::int64_t growth_interval = 2000;  ///< ... steps in a row without an infinity; at least 1
  double backoff_factor = 0.5;          ///< (0, 1): on the scale, after one with an infinity
};

class GradScaler {
 public:
  /// Throws UsageError for options out of their range.
  explicit GradScaler(GradScalerOptions options = {});

  /// loss * scale, in f32 (f64 stays f64), recorded.
  Tensor scale(const Tensor& loss) const;
  /// Divides the optimizer's gradients by the scale, once between two update(): for clipping.
  /// Throws StateError for a second call, and for a gradient that is not synchronized.
  void unscale(Optimizer& optimizer);
  /// unscale(), unless it was called; then optimizer.step(), unless a gradient is infinite or NaN.
  /// Tells whether it has stepped. On a GPU the host waits for the answer. Throws StateError for a
  /// second call between two update(), and what Optimizer::step throws.
  bool step(Optimizer& optimizer);
  /// The scale for the next backward, after the step of every optimizer, also of one that has ended
  /// since. Throws StateError if no optimizer was stepped or unscaled, or if the scale becomes so
  /// small that its reciprocal is infinite: then the gradients are not finite at any scale.
  void update();

  double scale() const;

  /// "scale": f64; "steady": i64, the steps without an infinity since the scale last changed.
  /// Throws StateError between unscale() or step() and update().
  nn::StateDict state_dict() const;
  /// Throws as state_dict() and load_tensors, and UsageError for a scale that is not positive and
  /// finite as f32; then nothing has changed.
  void load_state_dict(const nn::StateDict& state);

 private:
  void check_between_steps(std::string_view operation) const;
  struct Progress {
    bool finite = true;
    bool stepped = false;
  };
  GradScalerOptions options_;
  float scale_;  // as PyTorch's: f32
  Lifetime life_;
  std::int64_t steady_ = 0;  // steps in a row without an infinity
  // Since the last update(), by Optimizer::life(): an optimizer may end before update(), and its
  // address may be the next one's.
  std::map<std::weak_ptr<const void>, Progress, std::owner_less<>> unscaled_;
};

}  // namespace lockstep::optim
