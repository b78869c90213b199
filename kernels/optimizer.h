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

/// The options are used as they are. Their ranges are noted beside the defaults; the code that lets
/// users choose them checks them (nn/optim/optimizer.h).
struct SgdItem {
  Tensor value;
  Tensor gradient;
  Tensor momentum;     ///< undefined if SgdConfig::momentum is 0
  bool first = false;  ///< `momentum` holds nothing yet: it becomes the gradient, not dampened
  /// Gets the fingerprint of what the step leaves in value and momentum, in the same pass.
  Fingerprint fingerprint{};
};

struct SgdConfig {
  double lr = 1e-3;         ///< [0, inf)
  double momentum = 0;      ///< [0, inf); from 1 on, old gradients never fade
  double dampening = 0;     ///< any finite number
  double weight_decay = 0;  ///< [0, inf)
  bool nesterov = false;    ///< needs momentum > 0 and dampening 0
  bool maximize = false;    ///< here and below: the gradient is negated first
  bool operator==(const SgdConfig&) const = default;
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
  /// Gets the fingerprint of what the step leaves in value, mean, variance, max_variance and, as
  /// one more word, `step`, in the same pass.
  Fingerprint fingerprint{};
  Tensor max_variance{};  ///< zeros before the first step; undefined without AdamConfig::amsgrad
};

struct AdamConfig {
  double lr = 1e-3;         ///< [0, inf)
  double beta1 = 0.9;       ///< [0, 1): how much of the gradient's running mean is kept
  double beta2 = 0.999;     ///< [0, 1): the same for the mean of its square
  double eps = 1e-8;        ///< [0, inf); with 0, an element whose gradients were all 0 becomes NaN
  double weight_decay = 0;  ///< [0, inf)
  bool amsgrad = false;     ///< divide by the largest variance so far
  bool maximize = false;
  bool decoupled = false;  ///< AdamW: decay the value itself, not through the gradient
  bool operator==(const AdamConfig&) const = default;
};

/// decoupled: value *= 1 - lr * weight_decay, else: g = gradient + weight_decay * value;
/// mean = beta1 * mean + (1 - beta1) * g;  variance = beta2 * variance + (1 - beta2) * g^2;
/// v = variance; if amsgrad: v = max_variance = max(max_variance, variance), where NaN stays NaN;
/// value -= lr / (1 - beta1^t) * mean / (sqrt(v) / sqrt(1 - beta2^t) + eps).
/// (Kingma & Ba, "Adam", ICLR 2015, algorithm 1; Loshchilov & Hutter, "Decoupled weight decay
/// regularization", ICLR 2019, algorithm 2; Reddi, Kale & Kumar, "On the convergence of Adam and
/// beyond", ICLR 2018, algorithm 2.)
void adam_step(std::span<const AdamItem> items, const AdamConfig& config);

struct RmspropItem {
  Tensor value;
  Tensor gradient;
  Tensor square;    ///< running mean of the gradient's square; zeros before the first step
  Tensor mean;      ///< running mean of the gradient, likewise; undefined unless it is `centered`
  Tensor momentum;  ///< zeros before the first step; undefined if RmspropConfig::momentum is 0
  /// Gets the fingerprint of what the step leaves in all of them, in the same pass.
  Fingerprint fingerprint{};
};

struct RmspropConfig {
  double lr = 1e-2;         ///< [0, inf)
  double alpha = 0.99;      ///< [0, 1): how much of the running mean of the square is kept
  double eps = 1e-8;        ///< [0, inf); with 0, an element whose gradients were all 0 becomes NaN
  double weight_decay = 0;  ///< [0, inf)
  double momentum = 0;      ///< [0, inf)
  bool centered = false;    ///< divide by the standard deviation, not by the root of the square
  bool maximize = false;
  bool operator==(const RmspropConfig&) const = default;
};

/// g = gradient + weight_decay * value;
/// square = alpha * square + (1 - alpha) * g^2;  v = square;
/// if centered: mean = alpha * mean + (1 - alpha) * g, and v = square - mean^2;
/// g = g / (sqrt(v) + eps);
/// if momentum != 0: g = buffer = momentum * buffer + g;
/// value -= lr * g.
/// (Hinton, "Neural networks for machine learning", 2012, lecture 6e; centered: Graves, "Generating
/// sequences with recurrent neural networks", 2013, equations 38 to 41, with eps outside the root.)
void rmsprop_step(std::span<const RmspropItem> items, const RmspropConfig& config);

struct LionItem {
  Tensor value;
  Tensor gradient;
  Tensor momentum;  ///< zeros before the first step
  /// Gets the fingerprint of what the step leaves in value and momentum, in the same pass.
  Fingerprint fingerprint{};
};

struct LionConfig {
  double lr = 1e-4;         ///< [0, inf): every element moves by this much
  double beta1 = 0.9;       ///< [0, 1): how much of the momentum is in the direction of a step
  double beta2 = 0.99;      ///< [0, 1): how much of the momentum is kept
  double weight_decay = 0;  ///< [0, inf); on the value itself, times lr
  bool maximize = false;
  bool operator==(const LionConfig&) const = default;
};

/// c = beta1 * momentum + (1 - beta1) * gradient;
/// value = (1 - lr * weight_decay) * value - lr * sign(c);
/// momentum = beta2 * momentum + (1 - beta2) * gradient.
/// The sign of 0 is 0. That of NaN is NaN (in PyTorch 0), so that it does not pass unseen.
/// (Chen et al., "Symbolic discovery of optimization algorithms", NeurIPS 2023, algorithm 2.)
void lion_step(std::span<const LionItem> items, const LionConfig& config);

/// What steps keep of a value, in the order of its fingerprint: visit(name, tensor, whether steps
/// with these options keep it). Adam's `step`, which is no tensor of the value's shape, is not in
/// it.
void visit_kept(auto& item, const SgdConfig& config, const auto& visit) {
  visit("momentum", item.momentum, config.momentum != 0);
}
void visit_kept(auto& item, const AdamConfig& config, const auto& visit) {
  visit("mean", item.mean, true);
  visit("variance", item.variance, true);
  visit("max_variance", item.max_variance, config.amsgrad);
}
void visit_kept(auto& item, const RmspropConfig& config, const auto& visit) {
  visit("square", item.square, true);
  visit("mean", item.mean, config.centered);
  visit("momentum", item.momentum, config.momentum != 0);
}
void visit_kept(auto& item, const LionConfig&, const auto& visit) {
  visit("momentum", item.momentum, true);
}

}  // namespace lockstep::kernels
