#pragma once
/// Losses. Means over nothing are 0, so that a rank without samples adds nothing. Operands are of
/// one shape, else they throw ShapeError. Terms are added up as reductions.h says; those of the
/// means of mse and cross_entropy are computed in f64, too.

#include <cstdint>

#include "lockstep/core/tensor.h"

namespace lockstep {

/// What a loss makes of the values of its elements or rows.
enum class Reduction : std::uint8_t { mean, sum, none };

/// Mean over the n rows of -log softmax(logits)[label]: logits (n, c), labels (n,) i64 in [0, c) ->
/// (). Forward and backward share one pass over the logits.
Tensor cross_entropy(const Tensor& logits, const Tensor& labels);

/// Of cross_entropy and nll.
struct CrossEntropyOptions {
  Tensor weight = {};                ///< (c,): what a row of each class counts for; undefined: 1
  double label_smoothing = 0;        ///< this share of a label is spread over all classes evenly
  std::int64_t ignore_index = -100;  ///< rows with this label count for nothing
  Reduction reduction = Reduction::mean;
};
/// The mean divides by the sum of what the rows count for, as PyTorch's does. That is not their
/// number: batch.weight would weigh the ranks wrongly, and backward() refuses it. The mean over all
/// ranks' rows is that of
///   tape.backward(loss, batch.weight.counting(label_weight(batch.y, options)));
/// (On a GPU, labels that are ignored by the default ignore_index are not seen. Where a batch is
/// cut for any number of ranks, each part has its own mean, and weighs as many samples as it has:
/// docs/any-world.md.)
Tensor cross_entropy(const Tensor& logits, const Tensor& labels,
                     const CrossEntropyOptions& options);
inline Tensor cross_entropy(const Tensor& logits, const Tensor& labels, Reduction reduction) {
  return cross_entropy(logits, labels, {.reduction = reduction});
}
/// What labels count for in such a mean. On a GPU it waits.
double label_weight(const Tensor& labels, const CrossEntropyOptions& options);
/// The same from log-probabilities (n, c).
Tensor nll(const Tensor& log_probabilities, const Tensor& labels,
           const CrossEntropyOptions& options = {});

/// (x - y)^2 by elements. The mean is one kernel, here and in huber.
Tensor mse(const Tensor& x, const Tensor& y, Reduction reduction = Reduction::mean);
/// |x - y| by elements. Its gradient where they are equal is 0.
Tensor l1(const Tensor& x, const Tensor& y, Reduction reduction = Reduction::mean);
/// d^2 / 2 for d = |x - y| up to delta, beyond it delta (d - delta / 2). Delta may be infinite:
/// then the gradient of an infinite d is the largest number, if it is not that of a mean.
Tensor huber(const Tensor& x, const Tensor& y, double delta = 1,
             Reduction reduction = Reduction::mean);
/// -q log(p) - (1 - q) log(1 - p) by elements, for p = sigmoid(logits) and targets q in [0, 1].
Tensor bce_with_logits(const Tensor& logits, const Tensor& targets,
                       Reduction reduction = Reduction::mean);

}  // namespace lockstep
