#pragma once
/// Layers without parameters.

#include "lockstep/autograd/ops.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

/// A function of one tensor as a layer: `using Tanh = Function<tanh>`.
template <Tensor (*function)(const Tensor&)>
class Function : public Module {
 public:
  Tensor forward(const Tensor& x) override { return function(x); }
  Another make_another() const override { return std::make_unique<Function>(); }
};

/// The function of the same name (ops.h), as a layer.
using ReLU = Function<lockstep::relu>;
using ELU = Function<lockstep::elu>;
using GELU = Function<lockstep::gelu>;
using GELUTanh = Function<lockstep::gelu_tanh>;
using SiLU = Function<lockstep::silu>;
using Sigmoid = Function<lockstep::sigmoid>;
using LogSigmoid = Function<lockstep::log_sigmoid>;
using Softplus = Function<lockstep::softplus>;
using Tanh = Function<lockstep::tanh>;

/// x itself.
class Identity : public Module {
 public:
  Tensor forward(const Tensor& x) override { return x; }
  Another make_another() const override { return std::make_unique<Identity>(); }
};

/// x > 0 ? x : slope x.
class LeakyReLU : public Module {
 public:
  /// `slope`: of the negative side.
  explicit LeakyReLU(double slope = 0.01) : slope_(slope) {}
  Tensor forward(const Tensor& x) override { return leaky_relu(x, slope_); }
  Another make_another() const override { return std::make_unique<LeakyReLU>(slope_); }

 private:
  double slope_;
};

/// exp(x) / sum(exp(x)) along a dimension.
class Softmax : public Module {
 public:
  /// -1: the last dimension.
  explicit Softmax(int dim = -1) : dim_(dim) {}
  Tensor forward(const Tensor& x) override { return softmax(x, dim_); }
  Another make_another() const override { return std::make_unique<Softmax>(dim_); }

 private:
  int dim_;
};

/// (n, ...) -> (n, c).
class Flatten : public Module {
 public:
  /// Dimensions from `first` on become one.
  explicit Flatten(int first = 1) : first_(first) {}
  Tensor forward(const Tensor& x) override { return flatten(x, first_); }
  Another make_another() const override { return std::make_unique<Flatten>(first_); }

 private:
  int first_;
};

/// In training, zeroes elements with probability p and divides the others by 1 - p; in evaluation,
/// the identity.
class Dropout : public Module {
 public:
  /// Throws UsageError unless 0 <= p < 1.
  explicit Dropout(double p = 0.5);

  Tensor forward(const Tensor& x) override { return training() ? dropout(x, p_) : x; }
  Another make_another() const override { return std::make_unique<Dropout>(p_); }
  std::string describe() const override { return fmt::format("Dropout({})", p_); }

 private:
  double p_;
};

}  // namespace lockstep::nn
