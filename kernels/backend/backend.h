#pragma once
/// What a kind of device has to be able to do. The functions of elementwise.h, reduce.h, ... check
/// their arguments, then call the backend of the device on which the tensors lie: one switch, in
/// `backend_of`. What the functions compute is documented in their headers; here they may rely on
/// checked arguments: everything defined, on this device, of dtypes and shapes that fit.
///
/// GPU work is only enqueued, on the device's current stream (core/gpu/stream.h).

#include <span>

#include "lockstep/core/tensor.h"
#include "lockstep/kernels/batch_norm.h"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/indexed.h"
#include "lockstep/kernels/matmul.h"
#include "lockstep/kernels/optimizer.h"
#include "lockstep/kernels/random.h"

namespace lockstep::kernels {

class Backend {
 public:
  virtual ~Backend() = default;

  // elementwise.h
  virtual void unary(Unary op, const Tensor& x, const Tensor& out) = 0;
  /// `saved` is `dy` where the operation looks at nothing saved.
  virtual void unary_backward(Unary op, const Tensor& dy, const Tensor& saved, const Tensor& dx,
                              bool accumulate) = 0;
  virtual void binary(Binary op, const Tensor& a, const Tensor& b, const Tensor& out,
                      bool accumulate) = 0;
  virtual void broadcast_to(const Tensor& x, const Tensor& out, bool accumulate, double alpha) = 0;
  virtual void bias_activation(const Tensor& x, const Tensor& bias, Activation activation,
                               const Tensor& out) = 0;
  virtual void cast(const Tensor& x, const Tensor& out) = 0;
  virtual void transpose(const Tensor& x, const Tensor& out) = 0;

  // indexed.h
  virtual void compare(Compare op, const Tensor& a, const Tensor& b, const Tensor& out) = 0;
  /// binary() of integers.
  virtual void combine_integers(Binary op, const Tensor& a, const Tensor& b, const Tensor& out) = 0;
  /// cast() where x or `out` are integers.
  virtual void convert(const Tensor& x, const Tensor& out) = 0;
  virtual void masked_copy(const Tensor& mask, const Tensor& x, const Tensor& out) = 0;
  virtual void copy_window(const Shape& shape, const Tensor& x, const Window& from,
                           const Tensor& out, const Window& to, bool accumulate) = 0;
  virtual void take(const Taken& what, const Tensor& x, const Tensor& index, const Tensor& out) = 0;
  virtual void add_taken(const Taken& what, const Tensor& dy, const Tensor& index,
                         const Tensor& dx) = 0;
  virtual void cumulative_sum(std::int64_t outer, std::int64_t n, std::int64_t inner, bool reverse,
                              const Tensor& x, const Tensor& out) = 0;

  // reduce.h
  virtual void sum(const Tensor& x, const Tensor& out, bool accumulate, double scale) = 0;
  virtual void sum_rows(const Tensor& x, const Tensor& out, bool accumulate) = 0;
  virtual void sum_cols(const Tensor& x, const Tensor& out, bool accumulate) = 0;
  /// Only for pairs of shapes to which none of the three above applies; x has elements.
  virtual void sum_to(const Tensor& x, const Tensor& out, bool accumulate) = 0;
  virtual void argmax(const Tensor& x, const Tensor& out) = 0;
  virtual void find_nonfinite(const Tensor& x, const Tensor& flag) = 0;

  // loss.h
  virtual void softmax(const Tensor& x, const Tensor& out) = 0;
  virtual void log_softmax(const Tensor& x, const Tensor& out) = 0;
  virtual void log_softmax_backward(const Tensor& dy, const Tensor& y, const Tensor& dx,
                                    bool accumulate) = 0;
  virtual void cross_entropy(const Tensor& logits, const Tensor& labels, const Tensor& loss,
                             const Tensor& saved) = 0;
  virtual void cross_entropy_backward(const Tensor& dloss, const Tensor& saved,
                                      const Tensor& dlogits, bool accumulate) = 0;
  virtual void mse(const Tensor& x, const Tensor& y, const Tensor& loss) = 0;
  virtual void mse_backward(const Tensor& dloss, const Tensor& x, const Tensor& y, const Tensor& dx,
                            bool accumulate) = 0;

  // matmul.h: sizes m, n and k are > 0. `bias` may be undefined; it never comes with `accumulate`.
  virtual void matmul(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out,
                      const MatmulFlags& flags) = 0;

  // batch_norm.h
  virtual void batch_statistics(const Tensor& x, const Tensor& mean, const Tensor& m2) = 0;
  virtual void batch_inverse_std(const Tensor& m2, double count, double eps, const Tensor& out) = 0;
  virtual void batch_normalize(const Tensor& x, const Tensor& mean, const Tensor& inverse_std,
                               const Tensor& weight, const Tensor& bias, const Tensor& out) = 0;
  virtual void batch_norm_sums(const Tensor& dy, const Tensor& x, const Tensor& mean,
                               const Tensor& inverse_std, const Tensor& sum_dy,
                               const Tensor& sum_dy_xhat) = 0;
  virtual void batch_norm_dx(const Tensor& dy, const Tensor& x, const Tensor& mean,
                             const Tensor& inverse_std, const Tensor& weight, const Tensor& mean_dy,
                             const Tensor& mean_dy_xhat, const Tensor& dx, bool accumulate) = 0;

  // random.h
  virtual void uniform(const PhiloxState& state, const Tensor& out, double low, double high) = 0;
  virtual void normal(const PhiloxState& state, const Tensor& out, double mean, double stddev) = 0;
  virtual void dropout(const PhiloxState& state, const Tensor& x, double p, const Tensor& out,
                       const Tensor& mask) = 0;
  virtual void dropout_backward(const Tensor& dy, const Tensor& mask, double p, const Tensor& dx,
                                bool accumulate) = 0;

  // optimizer.h
  virtual void sgd_step(std::span<const SgdItem> items, const SgdConfig& config) = 0;
  virtual void adam_step(std::span<const AdamItem> items, const AdamConfig& config) = 0;
  virtual void rmsprop_step(std::span<const RmspropItem> items, const RmspropConfig& config) = 0;
  virtual void lion_step(std::span<const LionItem> items, const LionConfig& config) = 0;

  // fingerprint.h: `fingerprint.sum` is not null.
  virtual void add_fingerprint(std::span<const Tensor> tensors, const Fingerprint& fingerprint) = 0;

  // clip.h: clip_by_value gets at least one tensor.
  virtual void global_norm(std::span<const Tensor> tensors, const Tensor& out) = 0;
  virtual void clip_by_norm(std::span<const Tensor> tensors, const Tensor& norm,
                            double max_norm) = 0;
  virtual void clip_by_value(std::span<const Tensor> tensors, double limit) = 0;

  // tree_reduce.h
  virtual void tree_reduce(DType dtype, std::span<const std::byte* const> sources,
                           std::span<std::byte* const> destinations, std::int64_t count,
                           Device device) = 0;
};

/// The one place that chooses. Throws DeviceError for a device that this build does not drive.
Backend& backend_of(Device device);

Backend& cpu_backend();
/// Defined in cuda/ in builds with a GPU or the simulator, else in absent.cpp, where it throws.
Backend& gpu_backend();

}  // namespace lockstep::kernels
