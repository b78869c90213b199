#include "lockstep/kernels/loss.h"

#include <algorithm>
#include <limits>

#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/ops/broadcasting.h"
#include "lockstep/autograd/ops/in_f32.h"
#include "lockstep/autograd/rows.h"
#include "lockstep/autograd/saved_tensor.h"
#include "lockstep/kernels/checks.h"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/reduce.h"

namespace lockstep {

using kernels::Binary;

Tensor log_softmax(const Tensor& x) {
  check_defined("log_softmax", {{"x", x}});
  if (is_16_bit(x.dtype())) return in_f32([](const Tensor& wide) { return log_softmax(wide); }, x);
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  kernels::log_softmax(x, y);
  return record("log_softmax", y, {apart(x)}, [y = SavedTensor(y)](Gradients& g) {
    const auto dx = g.into(0);
    kernels::log_softmax_backward(g.output(), *y, dx.tensor, dx.accumulate);
  });
}

namespace {

// The forward pass can write the gradient, too, if it knows that of the loss. That is a guess: what
// this thread's last backward had. A wrong guess costs a launch, and changes no bit.
thread_local std::optional<double> guess = 1.0;

struct CrossEntropyBackward {
  SavedTensor logits, labels;
  Tensor made;  // with `guessed`, the gradient, else softmax - onehot
  std::optional<double> guessed;

  void operator()(Gradients& g) const {
    const Tensor &x = *logits, &labels_of_x = *labels;  // if they have changed, it always throws
    guess = g.seed();
    if (guessed && guessed == guess) return g.pass(0, made);
    const Tensor gradient = Tensor::empty(made.shape(), made.dtype(), made.device());
    each_loss(g, made.size(0), [&](const RowRange& rows, const Tensor& dloss) {
      Tensor saved = rows.of(made);
      if (guessed) {
        saved = rows.of(gradient);
        const Tensor again = Tensor::empty({}, made.dtype(), made.device());
        kernels::cross_entropy(rows.of(x), rows.of(labels_of_x), again, saved);
      }
      kernels::cross_entropy_backward(dloss, saved, rows.of(gradient), false);
    });
    g.pass(0, gradient);
  }
};

}  // namespace

Tensor cross_entropy(const Tensor& logits, const Tensor& labels) {
  check_defined("cross_entropy", {{"logits", logits}, {"labels", labels}});
  check_dtype("cross_entropy", {"labels", labels}, DType::i64);
  if (is_16_bit(logits.dtype()))
    return in_f32([&](const Tensor& wide) { return cross_entropy(wide, labels); }, logits);
  kernels::check_cross_entropy(logits, labels);
  const bool recording = Tape::current() && logits.gradient_ref().tape != GradientRef::nothing;
  const Tensor made =
      recording ? Tensor::empty(logits.shape(), logits.dtype(), logits.device()) : Tensor();
  return record_loss(
      "cross_entropy", LossKind::mean, {apart(logits), apart(labels)},
      [&](const RowRange& rows, const Tensor& to) {
        kernels::cross_entropy(rows.of(logits), rows.of(labels), to,
                               made.defined() ? rows.of(made) : made, guess);
      },
      CrossEntropyBackward{SavedTensor(logits), SavedTensor(labels), made, guess});
}

namespace {

// A loss broadcasts nothing: (n,) against (n, 1) would be n^2 losses. Differences of whole numbers
// wrap.
void check_alike(const char* name, const Tensor& x, const Tensor& y) {
  kernels::check_differentiable(name, x);
  check<ShapeError>(x.shape() == y.shape(), "[{}] shapes differ: {} and {}", name, x.shape(),
                    y.shape());
}

Tensor reduced(const Tensor& values, Reduction reduction) {
  return reduction == Reduction::none  ? values
         : reduction == Reduction::sum ? sum(values)
                                       : mean(values);
}
// The mean over all elements of a function of x - y. value(x, y, to) and gradient(dloss, x, y, dx,
// accumulate) are kernels for some rows; the gradient of y is that of x with both exchanged.
template <class Value, class Gradient>
Tensor mean_of_differences(const char* name, const Tensor& x, const Tensor& y, Value value,
                           Gradient gradient) {
  return record_loss(
      name, LossKind::mean, {apart(x), apart(y)},
      [&](const RowRange& rows, const Tensor& to) { value(rows.of(x), rows.of(y), to); },
      [x = SavedTensor(x), y = SavedTensor(y), gradient](Gradients& g) {
        const auto add = [&](const Tensor& a, const Tensor& b, const Gradients::Destination& da) {
          each_loss(g, rows_in(a), [&](const RowRange& rows, const Tensor& dloss) {
            gradient(dloss, rows.of(a), rows.of(b), rows.of(da.tensor), da.accumulate);
          });
        };
        if (const auto dx = g.into(0)) add(*x, *y, dx);
        if (const auto dy = g.into(1)) add(*y, *x, dy);
      });
}

// d = x - y: dx = 2 d dz, dy = -dx
Tensor squared_differences(const Tensor& x, const Tensor& y) {
  const Tensor z = combined(Binary::sub, x, y);
  kernels::binary(Binary::mul, z, z, z);
  return record("mse", z, {apart(x), apart(y)},
                [x = SavedTensor(x), y = SavedTensor(y)](Gradients& g) {
                  const Tensor d = combined(Binary::sub, *x, *y);
                  kernels::scale(2, d, d, false);
                  kernels::binary(Binary::mul, g.output(), d, d);
                  contribute(g, 0, d);
                  contribute(g, 1, d, -1);
                });
}

}  // namespace

Tensor mse(const Tensor& x, const Tensor& y, Reduction reduction) {
  if (all_16_bit("mse", {{"x", x}, {"y", y}})) return in_f32(mse, x, y, reduction);
  check_alike("mse", x, y);
  if (reduction != Reduction::mean) return reduced(squared_differences(x, y), reduction);
  return mean_of_differences("mse", x, y, kernels::mse, kernels::mse_backward);
}

Tensor l1(const Tensor& x, const Tensor& y, Reduction reduction) {
  if (all_16_bit("l1", {{"x", x}, {"y", y}})) return in_f32(l1, x, y, reduction);
  check_alike("l1", x, y);
  return reduced(abs(x - y), reduction);
}

Tensor huber(const Tensor& x, const Tensor& y, double delta, Reduction reduction) {
  check<UsageError>(delta > 0, "[huber] delta {}: it must be positive", delta);
  if (all_16_bit("huber", {{"x", x}, {"y", y}})) return in_f32(huber, x, y, delta, reduction);
  check_alike("huber", x, y);
  if (reduction == Reduction::mean)
    return mean_of_differences(
        "huber", x, y,
        [delta](const Tensor& a, const Tensor& b, const Tensor& to) {
          kernels::huber(a, b, delta, to);
        },
        [delta](const Tensor& dloss, const Tensor& a, const Tensor& b, const Tensor& da,
                bool accumulate) { kernels::huber_backward(dloss, a, b, delta, da, accumulate); });
  // The slope is finite in x's dtype: where the other branch counts, it is multiplied by 0.
  const double largest = x.dtype() == DType::f64 ? std::numeric_limits<double>::max()
                                                 : std::numeric_limits<float>::max();
  const double slope = std::min(delta, largest);
  const Tensor d = abs(x - y), inner = clamp_max(d, slope);
  return reduced(where(d < slope, square(inner) * 0.5, (d - slope / 2) * slope), reduction);
}

namespace {

// max(z, 0) - z q + softplus(-|z|): what cancels is added first. dz = sigmoid(z) - q, dq = -z
Tensor bce_terms(const Tensor& logits, const Tensor& targets) {
  using kernels::Unary;
  const Tensor z = logits.detach();
  const auto like_z = [&z] { return Tensor::empty(z.shape(), z.dtype(), z.device()); };
  const Tensor y = combined(Binary::maximum, z, like(z, 0)), opposite = like_z(), rest = like_z();
  kernels::unary(Unary::neg, targets, opposite);
  kernels::binary(Binary::mul, z, opposite, y, true);
  kernels::unary(Unary::abs, z, rest);
  kernels::unary(Unary::neg, rest, rest);
  kernels::unary(Unary::softplus, rest, rest);
  kernels::binary(Binary::add, y, rest, y);
  return record("bce_with_logits", y, {apart(logits), apart(targets)},
                [z = SavedTensor(z), q = SavedTensor(targets)](Gradients& g) {
                  if (const auto dz = g.into(0)) {
                    const Tensor slope = Tensor::empty(z.shape(), z->dtype(), z->device());
                    kernels::unary(Unary::sigmoid, *z, slope);
                    kernels::binary(Binary::sub, slope, *q, slope);
                    kernels::binary(Binary::mul, g.output(), slope, dz.tensor, dz.accumulate);
                  }
                  contribute(g, 1, combined(Binary::mul, g.output(), *z), -1);
                });
}

}  // namespace

Tensor bce_with_logits(const Tensor& logits, const Tensor& targets, Reduction reduction) {
  if (all_16_bit("bce_with_logits", {{"logits", logits}, {"targets", targets}}))
    return in_f32(bce_with_logits, logits, targets, reduction);
  check_alike("bce_with_logits", logits, targets);
  return reduced(bce_terms(logits, targets), reduction);
}

namespace {

// Of each row (n,): whether it counts, its label, 0 where it is ignored, and what it counts for.
struct Rows {
  Tensor counted, labels, weights;
};

Rows rows_of(const Tensor& logits, const Tensor& labels, const CrossEntropyOptions& options) {
  const Tensor counted = labels != static_cast<double>(options.ignore_index);
  const Tensor safe = where(counted, labels, 0.0);
  const Tensor weights = cast(counted, logits.dtype());
  if (!options.weight.defined()) return {counted, safe, weights};
  check<ShapeError>(options.weight.shape() == Shape{logits.size(1)},
                    "[cross_entropy] weight of shape {} for {} classes", options.weight.shape(),
                    logits.size(1));
  return {counted, safe, weights * index_select(options.weight.detach(), 0, safe)};
}

// What a mean of these rows is divided by, unless that is their number; see losses.h.
double counted_in(const Rows& rows, const CrossEntropyOptions& options) {
  const bool on_gpu = rows.weights.device() != Device{};
  if (on_gpu && !options.weight.defined() &&
      options.ignore_index == CrossEntropyOptions().ignore_index)
    return -1;
  if (on_gpu) return std::numeric_limits<double>::quiet_NaN();
  return sum(cast(rows.weights.detach(), DType::f64)).item();
}

CrossEntropyOptions in_f32_too(CrossEntropyOptions options) {
  if (options.weight.defined()) options.weight = cast(options.weight.detach(), DType::f32);
  return options;
}

// What some rows count for in all, or 1 for 0: they are divided by it.
Tensor total_of(const Tensor& weights) {
  const Tensor total = Tensor::empty({}, weights.dtype(), weights.device());
  kernels::sum(weights, total);
  return where(total == 0.0, 1.0, total);
}

// sum(losses) / sum(weights), or 0.
Tensor weighted_mean(const Tensor& losses, const Tensor& weights) {
  return record_loss(
      "weighted_mean", LossKind::mean, {apart(losses), apart(weights)},
      [&](const RowRange& rows, const Tensor& to) {
        kernels::sum(rows.of(losses), to);
        kernels::binary(Binary::div, to, total_of(rows.of(weights)), to);
      },
      [weights](Gradients& g) {
        const auto dx = g.into(0);
        each_loss(g, rows_in(weights), [&](const RowRange& rows, const Tensor& dy) {
          const Tensor share = Tensor::empty({}, dy.dtype(), dy.device());
          kernels::binary(Binary::div, dy, total_of(rows.of(weights)), share);
          kernels::broadcast_to(share, rows.of(dx.tensor), dx.accumulate);
        });
      });
}

Tensor weighted(const Tensor& losses, const Rows& rows, const CrossEntropyOptions& options) {
  if (options.reduction == Reduction::none) return losses;
  if (options.reduction == Reduction::sum) return sum(losses);
  return counting(weighted_mean(losses, rows.weights), counted_in(rows, options));
}

}  // namespace

namespace {

void refuse_learned(const char* operation, const CrossEntropyOptions& options) {
  const Tensor& weight = options.weight;
  check<StateError>(
      !weight.defined() || !Tape::current() || weight.gradient_ref().tape == GradientRef::nothing,
      "[{}] no gradient flows into the weights of classes: detach() them", operation);
}

}  // namespace

double label_weight(const Tensor& labels, const CrossEntropyOptions& options) {
  check_defined("label_weight", {{"labels", labels}});
  const Tensor counted = labels != static_cast<double>(options.ignore_index);
  const Tensor ones = cast(counted, DType::f64);
  if (!options.weight.defined()) return sum(ones).item();
  const Tensor of_class = index_select(options.weight.detach(), 0, where(counted, labels, 0.0));
  return sum(ones * cast(of_class, DType::f64)).item();
}

Tensor nll(const Tensor& log_probabilities, const Tensor& labels,
           const CrossEntropyOptions& options) {
  const Tensor& x = log_probabilities;
  check_defined("nll", {{"log_probabilities", x}, {"labels", labels}});
  check<ShapeError>(x.rank() == 2 && labels.shape() == Shape{x.size(0)},
                    "[nll] log-probabilities of shape {}, labels of shape {}", x.shape(),
                    labels.shape());
  check_dtype("nll", {"labels", labels}, DType::i64);
  refuse_learned("nll", options);
  if (all_16_bit("nll", {{"log_probabilities", x}, {"weight", options.weight, true}}))
    return in_f32(nll, x, labels, in_f32_too(options));
  const Rows rows = rows_of(x, labels, options);
  const Tensor picked = squeeze(gather(x, 1, unsqueeze(rows.labels, 1)), 1);
  Tensor losses = where(rows.counted, -(picked * rows.weights), 0.0);  // others may be infinite
  if (options.label_smoothing != 0) {
    check<UsageError>(options.label_smoothing > 0 && options.label_smoothing <= 1,
                      "[cross_entropy] label_smoothing {}: it lies in [0, 1]",
                      options.label_smoothing);
    const double share = options.label_smoothing / static_cast<double>(x.size(1));
    const Tensor over_classes = sum(options.weight.defined() ? x * options.weight.detach() : x, 1);
    losses =
        losses * (1 - options.label_smoothing) - where(rows.counted, over_classes, 0.0) * share;
  }
  return weighted(losses, rows, options);
}

Tensor cross_entropy(const Tensor& logits, const Tensor& labels,
                     const CrossEntropyOptions& options) {
  check_defined("cross_entropy", {{"logits", logits}, {"labels", labels}});
  check_dtype("cross_entropy", {"labels", labels}, DType::i64);
  refuse_learned("cross_entropy", options);
  if (all_16_bit("cross_entropy", {{"logits", logits}, {"weight", options.weight, true}}))
    return in_f32(
        [&](const Tensor& wide) { return cross_entropy(wide, labels, in_f32_too(options)); },
        logits);
  return nll(log_softmax(logits), labels, options);
}

}  // namespace lockstep
