#pragma once
/// The backend of GPUs and of the simulator. Defined family by family in the files of this folder.
/// Everything is enqueued on the current stream of the tensors' device (core/gpu/stream.h).

#include "lockstep/kernels/backend/backend.h"

namespace lockstep::kernels {

class CudaBackend final : public Backend {
 public:
  void unary(Unary op, const Tensor& x, const Tensor& out) override;
  void unary_backward(Unary op, const Tensor& dy, const Tensor& saved, const Tensor& dx,
                      bool accumulate) override;
  void binary(Binary op, const Tensor& a, const Tensor& b, const Tensor& out,
              bool accumulate) override;
  void broadcast_to(const Tensor& x, const Tensor& out, bool accumulate, double alpha) override;
  void bias_activation(const Tensor& x, const Tensor& bias, Activation activation,
                       const Tensor& out) override;
  void cast(const Tensor& x, const Tensor& out) override;
  void transpose(const Tensor& x, const Tensor& out) override;
  void compare(Compare op, const Tensor& a, const Tensor& b, const Tensor& out) override;
  void combine_integers(Binary op, const Tensor& a, const Tensor& b, const Tensor& out) override;
  void convert(const Tensor& x, const Tensor& out) override;
  void masked_copy(const Tensor& mask, const Tensor& x, const Tensor& out) override;
  void copy_window(const Shape& shape, const Tensor& x, const Window& from, const Tensor& out,
                   const Window& to, bool accumulate) override;
  void take(const Taken& what, const Tensor& x, const Tensor& index, const Tensor& out) override;
  void add_taken(const Taken& what, const Tensor& dy, const Tensor& index,
                 const Tensor& dx) override;
  void cumulative_sum(std::int64_t outer, std::int64_t n, std::int64_t inner, bool reverse,
                      const Tensor& x, const Tensor& out) override;
  void sum(const Tensor& x, const Tensor& out, bool accumulate, double scale) override;
  void sum_rows(const Tensor& x, const Tensor& out, bool accumulate) override;
  void sum_cols(const Tensor& x, const Tensor& out, bool accumulate) override;
  void sum_to(const Tensor& x, const Tensor& out, bool accumulate) override;
  void argmax(const Tensor& x, const Tensor& out) override;
  void find_nonfinite(const Tensor& x, const Tensor& flag) override;
  void softmax(const Tensor& x, const Tensor& out) override;
  void log_softmax(const Tensor& x, const Tensor& out) override;
  void log_softmax_backward(const Tensor& dy, const Tensor& y, const Tensor& dx,
                            bool accumulate) override;
  void cross_entropy(const Tensor& logits, const Tensor& labels, const Tensor& loss,
                     const Tensor& saved) override;
  void cross_entropy_backward(const Tensor& dloss, const Tensor& saved, const Tensor& dlogits,
                              bool accumulate) override;
  void mse(const Tensor& x, const Tensor& y, const Tensor& loss) override;
  void mse_backward(const Tensor& dloss, const Tensor& x, const Tensor& y, const Tensor& dx,
                    bool accumulate) override;
  void matmul(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out,
              const MatmulFlags& flags) override;
  void batch_statistics(const Tensor& x, const Tensor& mean, const Tensor& m2) override;
  void batch_inverse_std(const Tensor& m2, double count, double eps, const Tensor& out) override;
  void batch_normalize(const Tensor& x, const Tensor& mean, const Tensor& inverse_std,
                       const Tensor& weight, const Tensor& bias, const Tensor& out) override;
  void batch_norm_sums(const Tensor& dy, const Tensor& x, const Tensor& mean,
                       const Tensor& inverse_std, const Tensor& sum_dy,
                       const Tensor& sum_dy_xhat) override;
  void batch_norm_dx(const Tensor& dy, const Tensor& x, const Tensor& mean,
                     const Tensor& inverse_std, const Tensor& weight, const Tensor& mean_dy,
                     const Tensor& mean_dy_xhat, const Tensor& dx, bool accumulate) override;
  void uniform(const PhiloxState& state, const Tensor& out, double low, double high) override;
  void normal(const PhiloxState& state, const Tensor& out, double mean, double stddev) override;
  void dropout(const PhiloxState& state, const Tensor& x, double p, const Tensor& out,
               const Tensor& mask) override;
  void dropout_backward(const Tensor& dy, const Tensor& mask, double p, const Tensor& dx,
                        bool accumulate) override;
  void sgd_step(std::span<const SgdItem> items, const SgdConfig& config) override;
  void adam_step(std::span<const AdamItem> items, const AdamConfig& config) override;
  void rmsprop_step(std::span<const RmspropItem> items, const RmspropConfig& config) override;
  void lion_step(std::span<const LionItem> items, const LionConfig& config) override;
  void add_fingerprint(std::span<const Tensor> tensors, const Fingerprint& fingerprint) override;
  void global_norm(std::span<const Tensor> tensors, const Tensor& out) override;
  void clip_by_norm(std::span<const Tensor> tensors, const Tensor& norm, double max_norm) override;
  void clip_by_value(std::span<const Tensor> tensors, double limit) override;
  void tree_reduce(DType dtype, std::span<const std::byte* const> sources,
                   std::span<std::byte* const> destinations, std::int64_t count,
                   Device device) override;
};

}  // namespace lockstep::kernels
