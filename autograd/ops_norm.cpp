#include <algorithm>

#include "lockstep/autograd/ops.h"
#include "lockstep/kernels/batch_norm.h"
#include "lockstep/kernels/elementwise.h"

namespace lockstep {
namespace {

/// The gradient of a per-channel parameter, of its dtype, from its f64 sum.
void contribute(const Gradients::Destination& to, const Tensor& sum) {
  if (!to.accumulate) return kernels::cast(sum, to.tensor);
  const Tensor rounded = Tensor::empty(sum.shape(), to.tensor.dtype(), sum.device());
  kernels::cast(sum, rounded);
  kernels::scale(1, rounded, to.tensor, true);
}

}  // namespace

// y = xhat * weight + bias, xhat = (x - mean) / sqrt(variance + eps), over the rows of x (N, C):
// dbias = the sum of dy's rows, dweight = that of dy * xhat, and, since mean and variance depend on
// x, dx = weight / sqrt(variance + eps) * (dy - mean of dy - xhat * mean of dy * xhat).
Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  check<ShapeError>(x.rank() == 2, "[batch_norm] x: expected 2 dimensions, got shape {}",
                    x.shape());
  const std::int64_t rows = x.size(0), columns = x.size(1);
  const Tensor mean = Tensor::empty({columns}, DType::f64, x.device());
  const Tensor inverse_std = Tensor::empty({columns}, DType::f64, x.device());
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  kernels::batch_statistics(x, mean, inverse_std);  // m2 first, then what is made of it
  kernels::batch_inverse_std(inverse_std, static_cast<double>(rows), eps, inverse_std);
  kernels::batch_normalize(x, mean, inverse_std, weight, bias, y);
  return record("batch_norm", y, {&x, &weight, &bias},
                [x = x.detach(), weight = weight.detach(), mean, inverse_std](Gradients& g) {
                  const Tensor& dy = g.output();
                  const std::int64_t n = x.size(0), c = x.size(1);
                  const Tensor sums = Tensor::empty({2 * c}, DType::f64, x.device());
                  const Tensor sum_dy = sums.slice(0, c), sum_dy_xhat = sums.slice(c, 2 * c);
                  kernels::batch_norm_sums(dy, x, mean, inverse_std, sum_dy, sum_dy_xhat);
                  if (const auto dweight = g.into(1)) contribute(dweight, sum_dy_xhat);
                  if (const auto dbias = g.into(2)) contribute(dbias, sum_dy);
                  if (const auto dx = g.into(0)) {
                    kernels::scale(1.0 / static_cast<double>(std::max<std::int64_t>(n, 1)), sums,
                                   sums, false);
                    kernels::batch_norm_dx(dy, x, mean, inverse_std, weight, sum_dy, sum_dy_xhat,
                                           dx.tensor, dx.accumulate);
                  }
                });
}

}  // namespace lockstep
