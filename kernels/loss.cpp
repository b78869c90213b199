#include "lockstep/kernels/loss.h"

#include <algorithm>
#include <limits>
#include <span>

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

void logsumexp(const Tensor& x, const Tensor& out) {
  check_defined("logsumexp", "x", x);
  check_differentiable("logsumexp", x);
  check_rank("logsumexp", "x", x, 2);
  check_beside("logsumexp", "out", out, x.dtype(), x);
  check_shape("logsumexp", "out", out, {x.size(0)});
  if (x.size(1) == 0) return out.fill(-std::numeric_limits<double>::infinity());
  if (x.size(0) > 0) backend_of(x.device()).logsumexp(x, out);
}

void log_softmax_backward(const Tensor& dy, const Tensor& y, const Tensor& dx, bool accumulate) {
  check_rows("log_softmax_backward", "dy", dy, "dx", dx);
  check_alike("log_softmax_backward", "y", y, dy);
  backend_of(dy.device()).log_softmax_backward(dy, y, dx, accumulate);
}

void check_cross_entropy(const Tensor& logits, const Tensor& labels) {
  check_defined("cross_entropy", "logits", logits);
  check_differentiable("cross_entropy", logits);
  check_rank("cross_entropy", "logits", logits, 2);
  check_beside("cross_entropy", "labels", labels, DType::i64, logits);
  check_shape("cross_entropy", "labels", labels, {logits.size(0)});
  if (labels.device().kind != Device::Kind::cpu) return;
  const std::span<const std::int64_t> all = labels.span<std::int64_t>();
  const std::int64_t classes = logits.size(1);
  const auto bad = std::ranges::find_if_not(
      all, [classes](std::int64_t label) { return 0 <= label && label < classes; });
  if (bad != all.end())
    fail<DataError>("[cross_entropy] label {} of sample {} is not in 0..{} ({} classes)", *bad,
                    bad - all.begin(), classes - 1, classes);
}

void cross_entropy(const Tensor& logits, const Tensor& labels, const Tensor& loss,
                   const Tensor& saved, std::optional<double> dloss) {
  check_cross_entropy(logits, labels);
  check_scalar("cross_entropy", "loss", loss, logits);
  if (saved.defined()) check_alike("cross_entropy", "saved", saved, logits);
  backend_of(logits.device()).cross_entropy(logits, labels, loss, saved, dloss);
}

void cross_entropy_backward(const Tensor& dloss, const Tensor& saved, const Tensor& dlogits,
                            bool accumulate) {
  check_defined("cross_entropy_backward", "saved", saved);
  check_differentiable("cross_entropy_backward", saved);
  check_rank("cross_entropy_backward", "saved", saved, 2);
  check_scalar("cross_entropy_backward", "dloss", dloss, saved);
  check_alike("cross_entropy_backward", "dlogits", dlogits, saved);
  backend_of(saved.device()).cross_entropy_backward(dloss, saved, dlogits, accumulate);
}

namespace {

void check_pair(std::string_view operation, const Tensor& x, const Tensor& y) {
  check_defined(operation, "x", x);
  check_differentiable(operation, x);
  check_alike(operation, "y", y, x);
}

void check_pair_backward(std::string_view operation, const Tensor& dloss, const Tensor& x,
                         const Tensor& y, const Tensor& dx) {
  check_pair(operation, x, y);
  check_scalar(operation, "dloss", dloss, x);
  check_alike(operation, "dx", dx, x);
}

}  // namespace

void mse(const Tensor& x, const Tensor& y, const Tensor& loss) {
  check_pair("mse", x, y);
  check_scalar("mse", "loss", loss, x);
  backend_of(x.device()).mse(x, y, loss);
}

void mse_backward(const Tensor& dloss, const Tensor& x, const Tensor& y, const Tensor& dx,
                  bool accumulate) {
  check_pair_backward("mse_backward", dloss, x, y, dx);
  backend_of(x.device()).mse_backward(dloss, x, y, dx, accumulate);
}

void huber(const Tensor& x, const Tensor& y, double delta, const Tensor& loss) {
  check<UsageError>(delta > 0, "[huber] delta {}: it must be positive", delta);
  check_pair("huber", x, y);
  check_scalar("huber", "loss", loss, x);
  backend_of(x.device()).huber(x, y, delta, loss);
}

void huber_backward(const Tensor& dloss, const Tensor& x, const Tensor& y, double delta,
                    const Tensor& dx, bool accumulate) {
  check_pair_backward("huber_backward", dloss, x, y, dx);
  backend_of(x.device()).huber_backward(dloss, x, y, delta, dx, accumulate);
}

}  // namespace lockstep::kernels
