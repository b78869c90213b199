#pragma once
/// The differentiable operations: each computes its result, and records how gradients flow back if
/// a tape is alive and an operand wants one. Floating operands, all of one dtype; every size may be
/// 0. Errors name the operation and both values: "[add] a is f32, but b is f64".
///
/// f16 and bf16 operands: each operation computes in f32 and rounds its result once, and so does
/// backward each gradient.

#include <memory>

#include "lockstep/autograd/ops/choices.h"
#include "lockstep/autograd/ops/indices.h"
#include "lockstep/autograd/ops/losses.h"
#include "lockstep/autograd/ops/reductions.h"
#include "lockstep/autograd/ops/shapes.h"
#include "lockstep/autograd/tape.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// Elementwise with NumPy's broadcasting: sizes are aligned at the end, and a size of 1 repeats.
Tensor add(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Tensor& b);
inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
/// The remainder of a / b, with the sign of a. On integers a / b drops the fraction, as in C++; by
/// 0, both are 0.
Tensor operator%(const Tensor& a, const Tensor& b);

/// With a number, which becomes one of the tensor's dtype; beside a 16-bit tensor, of f32.
Tensor operator+(const Tensor& a, double b);
Tensor operator-(const Tensor& a, double b);
Tensor operator*(const Tensor& a, double b);
Tensor operator/(const Tensor& a, double b);
Tensor operator%(const Tensor& a, double b);
inline Tensor operator+(double a, const Tensor& b) { return b + a; }
Tensor operator-(double a, const Tensor& b);
inline Tensor operator*(double a, const Tensor& b) { return b * a; }
Tensor operator/(double a, const Tensor& b);

/// In place, outside of tapes: StateError if the gradient of a or b is being recorded. b broadcasts
/// to a. w.value() -= 0.1 * w.gradient() changes a parameter.
Tensor operator+=(const Tensor& a, const Tensor& b);
Tensor operator-=(const Tensor& a, const Tensor& b);
Tensor operator*=(const Tensor& a, const Tensor& b);
Tensor operator/=(const Tensor& a, const Tensor& b);
Tensor operator+=(const Tensor& a, double b);
Tensor operator-=(const Tensor& a, double b);
Tensor operator*=(const Tensor& a, double b);
Tensor operator/=(const Tensor& a, double b);

/// -x.
Tensor neg(const Tensor& x);
inline Tensor operator-(const Tensor& x) { return neg(x); }

/// The function of this name, of each element.
Tensor exp(const Tensor& x);
Tensor expm1(const Tensor& x);
Tensor log(const Tensor& x);
Tensor log1p(const Tensor& x);
Tensor sqrt(const Tensor& x);
Tensor rsqrt(const Tensor& x);       ///< 1 / sqrt(x)
Tensor reciprocal(const Tensor& x);  ///< 1 / x
Tensor square(const Tensor& x);      ///< x x
Tensor abs(const Tensor& x);         ///< its derivative at 0 is 0
Tensor sign(const Tensor& x);        ///< derivative 0, as of floor and round
Tensor floor(const Tensor& x);
Tensor round(const Tensor& x);  ///< half goes to the even neighbour
Tensor sin(const Tensor& x);
Tensor cos(const Tensor& x);
Tensor erf(const Tensor& x);
Tensor relu(const Tensor& x);         ///< its derivative at 0 is 0
Tensor elu(const Tensor& x);          ///< x > 0 ? x : exp(x) - 1
Tensor sigmoid(const Tensor& x);      ///< 1 / (1 + exp(-x))
Tensor log_sigmoid(const Tensor& x);  ///< log(sigmoid(x)), without overflow
Tensor tanh(const Tensor& x);
/// x times the normal distribution's Phi(x) (Hendrycks and Gimpel 2016), and its approximation.
Tensor gelu(const Tensor& x);
Tensor gelu_tanh(const Tensor& x);
Tensor silu(const Tensor& x);      ///< x sigmoid(x)
Tensor softplus(const Tensor& x);  ///< log(1 + exp(x))
/// One to the power of the other, by elements, as std::pow; but exponents such as 0.5 are roots, of
/// which negative numbers and -infinity have none: NaN, as in PyTorch (docs/precision.md).
Tensor pow(const Tensor& x, double exponent);
Tensor pow(double base, const Tensor& exponent);
Tensor pow(const Tensor& base, const Tensor& exponent);
/// x for a weight of 0, y for 1 (exactly, if y - x is finite), and in proportion between and
/// beyond.
Tensor lerp(const Tensor& x, const Tensor& y, double weight);
Tensor scale(const Tensor& x, double factor);  ///< x * factor

/// x in another dtype. Between floating ones, 16-bit ones included, the gradient is cast back; to
/// an integer the fraction is dropped, and no gradient flows.
Tensor cast(const Tensor& x, DType dtype);

/// For training: zeroes each element with probability p in [0, 1) and divides the others by 1 - p,
/// so that the expected value stays (Srivastava et al., "Dropout", JMLR 15, 2014, section 10).
/// Which ones is drawn from the thread's default_philox(): the same for the same manual_seed on
/// every device. For p = 0 this is x itself, and nothing is drawn.
Tensor dropout(const Tensor& x, double p);

/// Which operands are stored the other way round.
struct MatmulOptions {
  bool transpose_a = false;
  bool transpose_b = false;
};
/// (n, k) x (k, m) -> (n, m); a transposed operand is stored the other way round: (k, n) or (m, k).
///
/// Of more dimensions, the leading ones count matrices, and broadcast: (b, n, k) x (k, m) ->
/// (b, n, m). A vector (k,) is one row on the left, one column on the right, and vanishes from the
/// result.
Tensor matmul(const Tensor& a, const Tensor& b, MatmulOptions options = {});
Tensor outer(const Tensor& a, const Tensor& b);  ///< (n,), (m,) -> (n, m)
Tensor dot(const Tensor& a, const Tensor& b);    ///< (n,), (n,) -> ()

/// x W^T + b: x (..., in), w (out, in), b (out,) or undefined -> (..., out). One fused kernel.
Tensor linear(const Tensor& x, const Tensor& w, const Tensor& b = {});
/// relu(linear(x, w, b)), with the same bits: one product forward, two backward. `for_product`:
/// linear layers alone take the result. Under Autocast it is then rounded for them already, and so
/// is its gradient.
Tensor linear_relu(const Tensor& x, const Tensor& w, const Tensor& b = {},
                   bool for_product = false);

Tensor reshape(const Tensor& x, const Shape& shape);  ///< shares memory with x
/// The same; one size may be -1: what is left, as in reshape(x, {n, -1}).
Tensor reshape(const Tensor& x, std::initializer_list<std::int64_t> sizes);
/// x repeated along the dimensions that it lacks or has as 1, in new memory. Throws ShapeError
/// unless x broadcasts to `shape` itself (NumPy's rule, Shape::broadcast): (3,) to (2, 3), but
/// neither (2,) to (2, 3) nor (2, 3) to (3,).
Tensor broadcast_to(const Tensor& x, const Shape& shape);
/// The last two dimensions exchanged, in memory: (..., n, c) -> (..., c, n).
Tensor transpose(const Tensor& x);

/// The other ranks, where the rows of one batch lie on several: what batch_norm asks of them. Each
/// call is collective, and gives the same bits on every rank.
class BatchReducer {
 public:
  virtual ~BatchReducer() = default;
  /// The mean of this rank's `count` rows and their m2 (the sum of the squared deviations from it),
  /// both f64 (c,), become those of all ranks' rows. Returns the number of all rows.
  virtual double merge(double count, const Tensor& mean, const Tensor& m2) = 0;
  /// sums, f64, becomes its sum over the ranks.
  virtual void add(const Tensor& sums) = 0;
};

/// What batch_norm normalizes with, per channel: f64 (c,), on the device of its operand.
struct BatchStatistics {
  Tensor mean;
  Tensor m2;             ///< the variance is m2 / count
  double count = 1;      ///< 1: m2 is the variance itself
  bool constant = true;  ///< false: they are made of the operand, and gradients flow through them
  std::shared_ptr<BatchReducer> peers{};  ///< the ranks with the other rows; null: none
};

/// The statistics of x's rows (n, c), together with those of the peers, if there are any.
BatchStatistics batch_statistics(const Tensor& x, std::shared_ptr<BatchReducer> peers = nullptr);

/// Normalizes each column of x (n, c), then scales it by weight (c,) and shifts it by bias (c,),
/// either of which may be undefined: (x - mean) / sqrt(variance + eps) * weight + bias.
///
/// With `statistics` that are not constant, x must be the operand they are made of. If they have
/// peers, these meet again in backward if x wants a gradient; the gradients of weight and bias are
/// those of this rank's rows.
Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias,
                  const BatchStatistics& statistics, double eps = 1e-5);
/// By its own statistics.
Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps = 1e-5);

/// Over the last dimension of (n, c).
Tensor log_softmax(const Tensor& x);

/// By the mean and variance of the last dimension (Ba, Kiros, Hinton, "Layer normalization", 2016):
/// (x - mean) / sqrt(variance + eps) * weight + bias, (c,) each, or undefined.
Tensor layer_norm(const Tensor& x, const Tensor& weight = {}, const Tensor& bias = {},
                  double eps = 1e-5);
/// x / sqrt(mean(x^2) + eps) * weight, along the last dimension (Zhang and Sennrich, "Root mean
/// square layer normalization", NeurIPS 2019).
Tensor rms_norm(const Tensor& x, const Tensor& weight = {}, double eps = 1e-6);

}  // namespace lockstep
