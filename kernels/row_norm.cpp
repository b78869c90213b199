#include "lockstep/kernels/row_norm.h"

#include "lockstep/kernels/backend/backend.h"
#include "lockstep/kernels/checks.h"

namespace lockstep::kernels {
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
