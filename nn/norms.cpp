#include "lockstep/nn/norms.h"

#include <algorithm>
#include <string_view>
#include <vector>

namespace lockstep::nn {
namespace {

Parameter constant(std::int64_t n, double value, DType dtype) {
  return Parameter(Tensor::full({n}, value, dtype));
}

void check_options(std::string_view layer, std::int64_t features, double eps) {
  check<ShapeError>(features > 0, "[{}] {} features; at least 1 is needed", layer, features);
  check<UsageError>(eps >= 0, "[{}] eps {}: it is 0 or more", layer, eps);
}

void check_last(std::string_view layer, const Tensor& x, const Parameter& weight) {
  check<ShapeError>(x.rank() > 0 && x.size(-1) == weight.value().numel(),
                    "[{}] for {} features, got x of shape {}", layer, weight.value().numel(),
                    x.shape());
}

}  // namespace

LayerNorm::LayerNorm(std::int64_t features, double eps, DType dtype) : eps_(eps) {
  check_options("LayerNorm", features, eps);
  weight = constant(features, 1, dtype);
  bias = constant(features, 0, dtype);
}

std::string LayerNorm::describe() const {
  return fmt::format("LayerNorm({})", weight.value().numel());
}

Tensor LayerNorm::forward(const Tensor& x) {
  check_last("LayerNorm", x, weight);
  return layer_norm(x, weight, bias, eps_);
}

void LayerNorm::visit(Visitor& p) {
  p("weight", weight);
  p("bias", bias);
}

RMSNorm::RMSNorm(std::int64_t features, double eps, DType dtype) : eps_(eps) {
  check_options("RMSNorm", features, eps);
  weight = constant(features, 1, dtype);
}

std::string RMSNorm::describe() const { return fmt::format("RMSNorm({})", weight.value().numel()); }

Tensor RMSNorm::forward(const Tensor& x) {
  check_last("RMSNorm", x, weight);
  return rms_norm(x, weight, eps_);
}

void RMSNorm::visit(Visitor& p) { p("weight", weight); }

GroupNorm::GroupNorm(std::int64_t groups, std::int64_t channels, double eps, DType dtype)
    : groups_(groups), eps_(eps) {
  check_options("GroupNorm", channels, eps);
  check<ShapeError>(groups > 0 && channels % groups == 0, "[GroupNorm] {} groups of {} channels",
                    groups, channels);
  weight = constant(channels, 1, dtype);
  bias = constant(channels, 0, dtype);
}

std::string GroupNorm::describe() const {
  return fmt::format("GroupNorm({} of {})", groups_, weight.value().numel());
}

Tensor GroupNorm::forward(const Tensor& x) {
  const std::int64_t channels = weight.value().numel();
  check<ShapeError>(x.rank() >= 2 && x.size(1) == channels,
                    "[GroupNorm] for {} channels, got x of shape {}", channels, x.shape());
  const std::int64_t in_group = x.numel() / std::max<std::int64_t>(x.size(0) * groups_, 1);
  const Tensor grouped = reshape(x, {x.size(0), groups_, x.numel() == 0 ? 0 : in_group});
  const Tensor y = reshape(layer_norm(grouped, {}, {}, eps_), x.shape());
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(x.rank() - 1), 1);
  sizes[0] = channels;  // (channels, 1, ...)
  return y * reshape(weight, Shape(sizes)) + reshape(bias, Shape(sizes));
}

void GroupNorm::visit(Visitor& p) {
  p("weight", weight);
  p("bias", bias);
}

}  // namespace lockstep::nn
