#include "lockstep/kernels/random.h"

#include "lockstep/kernels/backend/backend.h"
#include "lockstep/kernels/checks.h"

namespace lockstep::kernels {
namespace {

void check_probability(double p) {
  check<UsageError>(p >= 0 && p < 1, "[dropout] p must be in [0, 1), got {}", p);
}

}  // namespace

void dropout(const PhiloxState& state, const Tensor& x, double p, const Tensor& out,
             const Tensor& mask) {
  check_probability(p);
  check_defined("dropout", "x", x);
  check_differentiable("dropout", x);
  check_alike("dropout", "out", out, x);
  check_beside("dropout", "mask", mask, DType::u8, x);
  check_shape("dropout", "mask", mask, x.shape());
  backend_of(x.device()).dropout(state, x, p, out, mask);
}

void dropout_backward(const Tensor& dy, const Tensor& mask, double p, const Tensor& dx,
                      bool accumulate) {
  check_probability(p);
  check_defined("dropout_backward", "dy", dy);
  check_differentiable("dropout_backward", dy);
  check_beside("dropout_backward", "mask", mask, DType::u8, dy);
  check_shape("dropout_backward", "mask", mask, dy.shape());
  check_alike("dropout_backward", "dx", dx, dy);
  backend_of(dy.device()).dropout_backward(dy, mask, p, dx, accumulate);
}

}  // namespace lockstep::kernels
