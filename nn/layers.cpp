#include "lockstep/nn/layers.h"

#include <cmath>
#include <typeinfo>

#include "lockstep/nn/initialize.h"

namespace lockstep::nn {

Linear::Linear(std::int64_t in, std::int64_t out, bool with_bias, DType dtype) {
  check<ShapeError>(in > 0 && out > 0, "[Linear] widths must be positive, got {} -> {}", in, out);
  weight = Parameter(Tensor::empty({out, in}, dtype));
  init::kaiming_uniform(weight.value(), std::sqrt(2.0 / (1.0 + 5.0)));  // a = sqrt(5), squared
  if (!with_bias) return;
  bias = Parameter(Tensor::empty({out}, dtype));
  const double bound = 1.0 / std::sqrt(static_cast<double>(in));
  init::uniform(bias.value(), -bound, bound);
}

Tensor Linear::forward_relu(const Tensor& x, bool for_product) {
  if (typeid(*this) != typeid(Linear)) return Module::forward_relu(x, for_product);
  return linear_relu(x, weight, bias, for_product);
}

void Linear::visit(Visitor& p) {
  p("weight", weight);
  p("bias", bias);
}

std::string Linear::describe() const {
  return fmt::format("Linear({} -> {}{})", weight.value().size(1), weight.value().size(0),
                     bias.defined() ? "" : ", without bias");
}

Module::Another Linear::make_another() const {
  const Tensor& w = weight.value();
  return std::make_unique<Linear>(w.size(1), w.size(0), bias.defined(), w.dtype());
}

Embedding::Embedding(std::int64_t rows, std::int64_t features, DType dtype) {
  check<ShapeError>(rows > 0 && features > 0, "[Embedding] sizes must be positive, got {} x {}",
                    rows, features);
  weight = Parameter(Tensor::randn({rows, features}, dtype));
}

std::string Embedding::describe() const {
  return fmt::format("Embedding({} x {})", weight.value().size(0), weight.value().size(1));
}

Module::Another Embedding::make_another() const {
  const Tensor& w = weight.value();
  return std::make_unique<Embedding>(w.size(0), w.size(1), w.dtype());
}

Dropout::Dropout(double p) : p_(p) {
  check<UsageError>(p >= 0 && p < 1, "[Dropout] p must be in [0, 1), got {}", p);
}

void Sequential::insert(std::size_t place, std::unique_ptr<Module> module) {
  check<UsageError>(module != nullptr, "[Sequential] insert no module");
  check<UsageError>(place <= size(), "[Sequential] insert at {} of {} modules", place, size());
  modules_.insert(modules_.begin() + static_cast<std::ptrdiff_t>(place), std::move(module));
}

Module& Sequential::operator[](std::size_t i) const {
  check<UsageError>(i < size(), "[Sequential] module {} of {}", i, size());
  return *modules_[i];
}

Module::Another Sequential::make_another() const {
  auto another = std::make_unique<Sequential>();
  for (const auto& module : modules_) another->insert(another->size(), module->make_another());
  return another;
}

Tensor Sequential::forward(const Tensor& x) {
  Tensor y = x;
  for (std::size_t i = 0; i < size(); ++i) {
    const auto is = [&](std::size_t at, const std::type_info& layer) {
      return at < size() && typeid((*this)[at]) == layer;
    };
    if (is(i, typeid(Linear)) && is(i + 1, typeid(ReLU))) {
      y = modules_[i]->then_relu(y, is(i + 2, typeid(Linear)));
      ++i;
    } else {
      y = (*modules_[i])(y);
    }
  }
  return y;
}

void Sequential::visit(Visitor& p) {
  for (std::size_t i = 0; i < modules_.size(); ++i) p(std::to_string(i), *modules_[i]);
}

}  // namespace lockstep::nn
