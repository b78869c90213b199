#include "lockstep/kernels/batch_norm.h"

#include <bit>

#include "lockstep/kernels/backend/backend.h"
#include "lockstep/kernels/checks.h"
#include "lockstep/kernels/formulas/batch_norm_parts.h"

namespace lockstep::kernels {
namespace {

void check_matrix(std::string_view operation, std::string_view name, const Tensor& x) {
  check_defined(operation, name, x);
  check_differentiable(operation, x);
  check_rank(operation, name, x, 2);
}

/// (C,), of this dtype, beside x (N, C).
void check_channels(std::string_view operation, std::string_view name, const Tensor& tensor,
                    DType dtype, const Tensor& x) {
  check_beside(operation, name, tensor, dtype, x);
  check_shape(operation, name, tensor, {x.size(1)});
}

}  // namespace

void batch_statistics(const Tensor& x, const Tensor& mean, const Tensor& m2) {
  check_matrix("batch_statistics", "x", x);
  check_channels("batch_statistics", "mean", mean, DType::f64, x);
  check_channels("batch_statistics", "m2", m2, DType::f64, x);
  backend_of(x.device()).batch_statistics(x, mean, m2);
}

void merge_statistics(double count_a, const Tensor& mean_a, const Tensor& m2_a, double count_b,
                      const Tensor& mean_b, const Tensor& m2_b) {
  check_defined("merge_statistics", "mean_a", mean_a);
  check_alike("merge_statistics", "m2_a", m2_a, mean_a);
  check_alike("merge_statistics", "mean_b", mean_b, mean_a);
  check_alike("merge_statistics", "m2_b", m2_b, mean_a);
  const auto means = mean_a.span<double>(), m2s = m2_a.span<double>();
  const auto other_means = mean_b.span<double>(), other_m2s = m2_b.span<double>();
  for (std::size_t c = 0; c < means.size(); ++c) {
    Moments<> a{count_a, means[c], m2s[c]};
    a.merge({count_b, other_means[c], other_m2s[c]});
    means[c] = a.mean;
    m2s[c] = a.m2;
  }
}

void merge_statistics(std::span<RowStatistics> parts) {
  if (parts.size() == 1) return;
  const std::size_t cut = std::bit_floor(parts.size() - 1);
  merge_statistics(parts.first(cut));
  merge_statistics(parts.subspan(cut));
  RowStatistics &a = parts[0], &b = parts[cut];
  merge_statistics(a.count, a.mean, a.m2, b.count, b.mean, b.m2);
  a.count += b.count;
}

void batch_inverse_std(const Tensor& m2, double count, double eps, const Tensor& out) {
  check_defined("batch_inverse_std", "m2", m2);
  check<DTypeError>(m2.dtype() == DType::f64, "[batch_inverse_std] m2: expected f64, got {}",
                    m2.dtype());
  check_alike("batch_inverse_std", "out", out, m2);
  backend_of(m2.device()).batch_inverse_std(m2, count, eps, out);
}

void batch_normalize(const Tensor& x, const Tensor& mean, const Tensor& inverse_std,
                     const Tensor& weight, const Tensor& bias, const Tensor& out) {
  check_matrix("batch_normalize", "x", x);
  check_channels("batch_normalize", "mean", mean, DType::f64, x);
  check_channels("batch_normalize", "inverse_std", inverse_std, DType::f64, x);
  if (weight.defined()) check_channels("batch_normalize", "weight", weight, x.dtype(), x);
  if (bias.defined()) check_channels("batch_normalize", "bias", bias, x.dtype(), x);
  check_alike("batch_normalize", "out", out, x);
  backend_of(x.device()).batch_normalize(x, mean, inverse_std, weight, bias, out);
}

void batch_norm_sums(const Tensor& dy, const Tensor& x, const Tensor& mean,
                     const Tensor& inverse_std, const Tensor& sum_dy, const Tensor& sum_dy_xhat) {
  check_matrix("batch_norm_sums", "dy", dy);
  check_alike("batch_norm_sums", "x", x, dy);
  check_channels("batch_norm_sums", "mean", mean, DType::f64, dy);
  check_channels("batch_norm_sums", "inverse_std", inverse_std, DType::f64, dy);
  check_channels("batch_norm_sums", "sum_dy", sum_dy, DType::f64, dy);
  check_channels("batch_norm_sums", "sum_dy_xhat", sum_dy_xhat, DType::f64, dy);
  backend_of(x.device()).batch_norm_sums(dy, x, mean, inverse_std, sum_dy, sum_dy_xhat);
}

void batch_norm_dx(const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& inverse_std,
                   const Tensor& weight, const Tensor& mean_dy, const Tensor& mean_dy_xhat,
                   const Tensor& dx, bool accumulate) {
  check_matrix("batch_norm_dx", "dy", dy);
  check_alike("batch_norm_dx", "x", x, dy);
  check_channels("batch_norm_dx", "mean", mean, DType::f64, dy);
  check_channels("batch_norm_dx", "inverse_std", inverse_std, DType::f64, dy);
  if (weight.defined()) check_channels("batch_norm_dx", "weight", weight, dy.dtype(), dy);
  check_channels("batch_norm_dx", "mean_dy", mean_dy, DType::f64, dy);
  check_channels("batch_norm_dx", "mean_dy_xhat", mean_dy_xhat, DType::f64, dy);
  check_alike("batch_norm_dx", "dx", dx, dy);
  backend_of(x.device())
      .batch_norm_dx(dy, x, mean, inverse_std, weight, mean_dy, mean_dy_xhat, dx, accumulate);
}

namespace {

void check_statistics(std::string_view operation, const Tensor& x, const Tensor& mean,
                      const Tensor& inverse_std) {
  check_defined(operation, "x", x);
  check_differentiable(operation, x);
  check_rank(operation, "x", x, 2);
  check_beside(operation, "mean", mean, DType::f64, x);
  check_shape(operation, "mean", mean, {x.size(0)});
  check_alike(operation, "inverse_std", inverse_std, mean);
}

void check_feature(std::string_view operation, std::string_view name, const Tensor& tensor,
                   const Tensor& x) {
  check_beside(operation, name, tensor, x.dtype(), x);
  check_shape(operation, name, tensor, {x.size(1)});
}

}  // namespace

void row_normalize(const Tensor& x, const Tensor& weight, const Tensor& bias,
                   const RowNormConfig& config, const Tensor& out, const Tensor& mean,
                   const Tensor& inverse_std) {
  check_statistics("row_normalize", x, mean, inverse_std);
  if (weight.defined()) check_feature("row_normalize", "weight", weight, x);
  if (bias.defined()) check_feature("row_normalize", "bias", bias, x);
  check_alike("row_normalize", "out", out, x);
  if (x.numel() > 0)
    backend_of(x.device()).row_normalize(x, weight, bias, config, out, mean, inverse_std);
}

void row_norm_dweight(const Tensor& dy, const Tensor& x, const Tensor& mean,
                      const Tensor& inverse_std, const Tensor& dweight, bool accumulate) {
  check_statistics("row_norm_dweight", x, mean, inverse_std);
  check_alike("row_norm_dweight", "dy", dy, x);
  check_feature("row_norm_dweight", "dweight", dweight, x);
  if (x.numel() > 0)
    backend_of(x.device()).row_norm_dweight(dy, x, mean, inverse_std, dweight, accumulate);
  else if (!accumulate)
    dweight.fill_zero();
}

void row_norm_dx(const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& inverse_std,
                 const Tensor& weight, const RowNormConfig& config, const Tensor& dx,
                 bool accumulate) {
  check_statistics("row_norm_dx", x, mean, inverse_std);
  check_alike("row_norm_dx", "dy", dy, x);
  check_alike("row_norm_dx", "dx", dx, x);
  if (weight.defined()) check_feature("row_norm_dx", "weight", weight, x);
  if (x.numel() > 0)
    backend_of(x.device()).row_norm_dx(dy, x, mean, inverse_std, weight, config, dx, accumulate);
}

}  // namespace lockstep::kernels
