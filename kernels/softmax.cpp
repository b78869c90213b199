#include "lockstep/kernels/softmax.h"

#include "lockstep/kernels/backend/backend.h"
#include "lockstep/kernels/checks.h"

namespace lockstep::kernels {
namespace {

void check_rows(std::string_view operation, std::string_view name, const Tensor& x,
                std::string_view out_name, const Tensor& out) {
  check_defined(operation, name, x);
  check_differentiable(operation, x);
  check_rank(operation, name, x, 2);
  check_alike(operation, out_name, out, x);
}

}  // namespace

void softmax(const Tensor& x, const Tensor& out) {
  check_rows("softmax", "x", x, "out", out);
  backend_of(x.device()).softmax(x, out);
}

void log_softmax(const Tensor& x, const Tensor& out) {
  check_rows("log_softmax", "x", x, "out", out);
  backend_of(x.device()).log_softmax(x, out);
}

void log_softmax_backward(const Tensor& dy, const Tensor& y, const Tensor& dx, bool accumulate) {
  check_rows("log_softmax_backward", "dy", dy, "dx", dx);
  check_alike("log_softmax_backward", "y", y, dy);
  backend_of(dy.device()).log_softmax_backward(dy, y, dx, accumulate);
}

}  // namespace lockstep::kernels
