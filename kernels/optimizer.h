#pragma once
/// Optimizer steps over flat memory: one call updates a whole table of tensors (f32 or f64, any
/// shape; all tensors of an item alike), reading and writing each element once.
///
/// The formulas and their order are those of torch.optim, on the CPU, without its fused variants;
/// scalars are computed in f64 and then rounded to the tensor's dtype. Not fused into a
/// multiply-add: an element's bits do not depend on where in the table it lies.

#include <cstdint>
#include <span>

#include "lockstep/core/tensor.h"
#include "lockstep/kernels/fingerprint.h"

namespace lockstep::kernels {

/// The scalars are used as they are: their ranges are checked by whoever lets users choose them
/// (nn/optim/optimizer.h).
struct SgdItem {
  Tensor value;
  Tensor gradient;
  Tensor momentum;     ///< undefined if SgdConfig::momentum is 0
  bool first = false;  ///< `momentum` holds nothing yet: it becomes the gradient, not dampened
  /// Gets the fingerprint of what the step leaves in value and momentum, in the same pass.
  Fingerprint fingerprint{};
};

struct SgdConfig {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
};

/// g = gradient + weight_decay * value;
/// if momentum != 0: buffer = momentum * buffer + (1 - dampening) * g, and
///                   g = nesterov ? g + momentum * buffer : buffer;
/// value -= lr * g.
/// (Sutskever et al., "On the importance of initialization and momentum in deep learning", ICML
/// 2013, but with the learning rate outside the buffer.)
void sgd_step(std::span<const SgdItem> items, const SgdConfig& config);

struct AdamItem {
  Tensor value;
  Tensor gradient;
  Tensor mean;      ///< running mean of the gradient; zeros before the first step
  Tensor variance;  ///< running mean of its square; zeros before the first step
  /// i64, one element on the value's device, of this item alone: the number of steps done, less
  /// than 2^32. The call adds 1 and uses the sum as t. It lies on the device so that a step which
  /// is captured once and replayed counts too.
  Tensor step;
  /// Gets the fingerprint of what the step leaves in value, mean, variance and, as one more word,
  /// `step`, in the same pass.
  Fingerprint fingerprint{};
};

struct AdamConfig {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decoupled = false;  ///< AdamW: decay the value itself, not through the gradient
};

/// decoupled: value *= 1 - lr * weight_decay, else: g = gradient + weight_decay * value;
/// mean = beta1 * mean + (1 - beta1) * g;  variance = beta2 * variance + (1 - beta2) * g^2;
/// value -= lr / (1 - beta1^t) * mean / (sqrt(variance) / sqrt(1 - beta2^t) + eps).
/// (Kingma & Ba, "Adam", ICLR 2015, algorithm 1; Loshchilov & Hutter, "Decoupled weight decay
/// regularization", ICLR 2019, algorithm 2.)
void adam_step(std::span<const AdamItem> items, const AdamConfig& config);

}  // namespace lockstep::kernels
