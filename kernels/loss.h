#pragma once
/// Softmax over the last dimension of (N, C), and losses, f32 and f64.
///
/// Softmax subtracts the largest element of a row first, so that large inputs do not overflow; a
/// row that holds NaN or +infinity becomes NaN.
///
/// Accuracy. Sums of exponentials and of terms are computed in f64 on the cpu (on a GPU, sums of
/// terms). Sums of terms are pairwise (reduce.h), so that a mean of n terms of f64 is within
/// (128 + log2 n) 2^-53 of it, and one of f32 is the exact one but for the rounding of its terms
/// and its own. The C exponentials of a row go into 16 sums.
///
/// Losses are means, with a scalar output. The mean of nothing is 0, and so is its gradient: a rank
/// without samples goes through the same motions as the others.

#include <optional>

#include "lockstep/core/tensor.h"

namespace lockstep::kernels {

/// y_ic = exp(x_ic) / sum_k exp(x_ik). `out` may be x.
void softmax(const Tensor& x, const Tensor& out);

/// y_ic = x_ic - log sum_k exp(x_ik). `out` may be x.
void log_softmax(const Tensor& x, const Tensor& out);

/// out_i = log sum_k exp(x_ik): (N, C) -> (N,). Of nothing and of -infinity alone it is -infinity,
/// of a row with +infinity +infinity, of one with NaN NaN.
void logsumexp(const Tensor& x, const Tensor& out);

/// dx_ic (+)= dy_ic - exp(y_ic) * sum_k dy_ik, with y the output of log_softmax.
void log_softmax_backward(const Tensor& dy, const Tensor& y, const Tensor& dx, bool accumulate);

/// loss = mean over i of -log softmax(logits_i)[labels_i]: logits (N, C), labels (N,) i64.
///
/// `saved` (N, C) receives softmax(logits) - onehot(labels), which is the gradient but for its
/// factor dloss / N; if `dloss` is known, the gradient itself, with the bits that
/// cross_entropy_backward would give it. It may be `logits` itself, or undefined where no gradient
/// is wanted. A label outside 0..C-1 throws DataError: on the cpu before anything is written, on a
/// GPU at the next wait (core/gpu/stream.h); until then the loss is NaN.
void cross_entropy(const Tensor& logits, const Tensor& labels, const Tensor& loss,
                   const Tensor& saved, std::optional<double> dloss = {});

/// Throws what cross_entropy would: for code that calls it with some rows after others.
void check_cross_entropy(const Tensor& logits, const Tensor& labels);

/// dlogits (+)= dloss / N * saved, where dloss is a tensor of one element. `dlogits` may be
/// `saved`.
void cross_entropy_backward(const Tensor& dloss, const Tensor& saved, const Tensor& dlogits,
                            bool accumulate);

/// loss = mean over all elements of (x - y)^2.
void mse(const Tensor& x, const Tensor& y, const Tensor& loss);

/// dx (+)= dloss * 2 (x - y) / n. The gradient of y is the same with x and y exchanged.
void mse_backward(const Tensor& dloss, const Tensor& x, const Tensor& y, const Tensor& dx,
                  bool accumulate);

/// loss = mean over all elements of d^2 / 2 for d = |x - y| up to delta, beyond it of delta (d -
/// delta / 2), computed in the dtype of x and added up in f64. 0 < delta, which may be infinite.
void huber(const Tensor& x, const Tensor& y, double delta, const Tensor& loss);

/// dx (+)= dloss (x - y) / n, with x - y moved into [-delta, delta]. The gradient of y is the same
/// with x and y exchanged.
void huber_backward(const Tensor& dloss, const Tensor& x, const Tensor& y, double delta,
                    const Tensor& dx, bool accumulate);

}  // namespace lockstep::kernels
