#pragma once
/// Linear, ReLU, Dropout, Sequential, and the losses.

#include <concepts>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/autograd/ops.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

using lockstep::cross_entropy;
using lockstep::mse;

/// y = x W^T + b, x: (N, in), W: (out, in), b: (out,), y: (N, out).
///
/// Initialized as PyTorch does (He et al. 2015, "Delving Deep into Rectifiers", with a = sqrt(5)),
/// drawn from the thread's default generator, weight before bias:
///   W ~ U(-k, k), k = sqrt(3) * sqrt(2 / (1 + a^2)) / sqrt(in);  b ~ U(-1/sqrt(in), 1/sqrt(in)).
/// The two bounds are the same number, but for rounding.
class Linear : public Module {
 public:
  /// Throws ShapeError for a width below 1.
  Linear(std::int64_t in, std::int64_t out, bool bias = true, DType dtype = DType::f32);

  Tensor forward(const Tensor& x) override { return linear(x, weight, bias); }
  void visit(Visitor& p) override;

  Parameter weight;  ///< (out, in)
  Parameter bias;    ///< (out,), or undefined
};

/// max(x, 0).
class ReLU : public Module {
 public:
  Tensor forward(const Tensor& x) override { return relu(x); }
};

/// In training, zeroes elements with probability p and divides the others by 1 - p; in evaluation,
/// the identity.
class Dropout : public Module {
 public:
  /// Throws UsageError unless 0 <= p < 1.
  explicit Dropout(double p = 0.5);

  Tensor forward(const Tensor& x) override { return training() ? dropout(x, p_) : x; }

 private:
  double p_;
};

/// Modules one after another; part i is named "i".
class Sequential : public Module {
 public:
  template <std::derived_from<Module>... Modules>
  requires(sizeof...(Modules) > 0) explicit Sequential(Modules... modules) {
    (append(std::move(modules)), ...);
  }
  Sequential() = default;

  template <std::derived_from<Module> M>
  void append(M module) {
    modules_.push_back(std::make_unique<M>(std::move(module)));
  }

  Tensor forward(const Tensor& x) override;
  void visit(Visitor& p) override;

 private:
  std::vector<std::unique_ptr<Module>> modules_;
};

}  // namespace lockstep::nn
