#include "lockstep/nn/norms.h"

#include <algorithm>
#include <string_view>
#include <vector>

namespace lockstep::nn {

Norm::Norm(std::string_view layer, std::int64_t features, double eps, DType dtype, bool with_bias)
    : eps_(eps) {
  check<ShapeError>(features > 0, "[{}] {} features; at least 1 is needed", layer, features);
  check<UsageError>(eps >= 0, "[{}] eps {}: it is 0 or more", layer, eps);
  weight = Parameter(Tensor::ones({features}, dtype));
  if (with_bias) bias = Parameter(Tensor::zeros({features}, dtype));
}

void Norm::visit(Visitor& p) {
  p("weight", weight);
  p("bias", bias);
}

std::string Norm::describe() const { return fmt::format("{}({})", Module::describe(), features()); }

void Norm::check_last(std::string_view layer, const Tensor& x) const {
  check<ShapeError>(x.rank() > 0 && x.size(-1) == features(),
                    "[{}] for {} features, got x of shape {}", layer, features(), x.shape());
}

Tensor LayerNorm::forward(const Tensor& x) {
  check_last("LayerNorm", x);
  return layer_norm(x, weight, bias, eps_);
}

Tensor RMSNorm::forward(const Tensor& x) {
  check_last("RMSNorm", x);
  return rms_norm(x, weight, eps_);
}

GroupNorm::GroupNorm(std::int64_t groups, std::int64_t channels, double eps, DType dtype)
    : Norm("GroupNorm", channels, eps, dtype, true), groups_(groups) {
  check<ShapeError>(groups > 0 && channels % groups == 0, "[GroupNorm] {} groups of {} channels",
                    groups, channels);
}

std::string GroupNorm::describe() const {
  return fmt::format("GroupNorm({} of {})", groups_, features());
}

Tensor GroupNorm::forward(const Tensor& x) {
  const std::int64_t channels = features();
  check<ShapeError>(x.rank() >= 2 && x.size(1) == channels,
                    "[GroupNorm] for {} channels, got x of shape {}", channels, x.shape());
  const std::int64_t in_group = x.numel() / std::max<std::int64_t>(x.size(0) * groups_, 1);
  const Tensor grouped = reshape(x, {x.size(0), groups_, x.numel() == 0 ? 0 : in_group});
  const Tensor y = reshape(layer_norm(grouped, {}, {}, eps_), x.shape());
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(x.rank() - 1), 1);
  sizes[0] = channels;  // (channels, 1, ...)
  return y * reshape(weight, Shape(sizes)) + reshape(bias, Shape(sizes));
}

}  // namespace lockstep::nn
