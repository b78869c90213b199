// Normalization of rows on a GPU: made of other kernels, in f64.
//
// Counted (./lockstep count --write; docs/counters.md):
//   row_normalize 256x256: 12 launches, DRAM 14.87 of the fewest
//   row_norm_dx 256x256: 14 launches, DRAM 16.25 of the fewest
#include "lockstep/kernels/batch_norm.h"
#include "lockstep/kernels/cuda/backend.h"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/reduce.h"

namespace lockstep::kernels {
namespace {

Tensor wide(const Shape& shape, const Tensor& beside) {
  return Tensor::empty(shape, DType::f64, beside.device());
}
Tensor widened(const Tensor& x) {
  const Tensor result = wide(x.shape(), x);
  kernels::cast(x, result);
  return result;
}

/// A number for each row of a matrix, as a column.
Tensor column(const Tensor& of_rows) { return of_rows.detach().view({of_rows.numel(), 1}); }

Tensor xhat_of(const Tensor& x, const Tensor& mean, const Tensor& inverse_std) {
  const Tensor result = widened(x);
  kernels::binary(Binary::sub, result, column(mean), result);
  kernels::binary(Binary::mul, result, column(inverse_std), result);
  return result;
}

/// out (+)= sums, rounded.
void put(const Tensor& sums, const Tensor& out, bool accumulate) {
  if (!accumulate) return kernels::cast(sums, out);
  const Tensor rounded = Tensor::empty(out.shape(), out.dtype(), out.device());
  kernels::cast(sums, rounded);
  kernels::scale(1, rounded, out, true);
}

}  // namespace

void CudaBackend::row_normalize(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                const RowNormConfig& config, const Tensor& out, const Tensor& mean,
                                const Tensor& inverse_std) {
  const auto count = static_cast<double>(x.size(1));
  const Tensor y = widened(x);
  if (config.centered)
    kernels::sum_cols(y, mean, false, count);
  else
    mean.fill_zero();
  kernels::binary(Binary::sub, y, column(mean), y);
  const Tensor squares = wide(x.shape(), x);
  kernels::unary(Unary::square, y, squares);
  kernels::sum_cols(squares, inverse_std);
  kernels::batch_inverse_std(inverse_std, count, config.eps, inverse_std);
  kernels::binary(Binary::mul, y, column(inverse_std), y);
  if (weight.defined()) kernels::binary(Binary::mul, y, widened(weight), y);
  if (bias.defined()) kernels::binary(Binary::add, y, widened(bias), y);
  kernels::cast(y, out);
}

void CudaBackend::row_norm_dweight(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                   const Tensor& inverse_std, const Tensor& dweight,
                                   bool accumulate) {
  const Tensor products = xhat_of(x, mean, inverse_std), sums = wide(dweight.shape(), x);
  kernels::binary(Binary::mul, products, widened(dy), products);
  kernels::sum_rows(products, sums);
  put(sums, dweight, accumulate);
}

void CudaBackend::row_norm_dx(const Tensor& dy, const Tensor& x, const Tensor& mean,
                              const Tensor& inverse_std, const Tensor& weight,
                              const RowNormConfig& config, const Tensor& dx, bool accumulate) {
  const auto count = static_cast<double>(x.size(1));
  const Tensor xhat = xhat_of(x, mean, inverse_std), g = widened(dy), part = wide(x.shape(), x);
  const Tensor mean_of_row = wide({x.size(0)}, x);
  if (weight.defined()) kernels::binary(Binary::mul, g, widened(weight), g);
  kernels::binary(Binary::mul, g, xhat, part);
  if (config.centered) {
    kernels::sum_cols(g, mean_of_row, false, count);
    kernels::binary(Binary::sub, g, column(mean_of_row), g);
  }
  kernels::sum_cols(part, mean_of_row, false, count);
  kernels::binary(Binary::mul, xhat, column(mean_of_row), part);
  kernels::binary(Binary::sub, g, part, g);
  kernels::binary(Binary::mul, g, column(inverse_std), g);
  put(g, dx, accumulate);
}

}  // namespace lockstep::kernels
