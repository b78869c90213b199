#pragma once
/// Linear, Embedding, Residual, Sequential, and the losses.

#include <concepts>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/autograd/ops.h"
#include "lockstep/nn/activations.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

using lockstep::bce_with_logits;
using lockstep::cross_entropy;
using lockstep::huber;
using lockstep::l1;
using lockstep::mse;
using lockstep::nll;

/// y = x W^T + b, x: (..., in), W: (out, in), b: (out,), y: (..., out).
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
  std::string describe() const override;

  Parameter weight;  ///< (out, in)
  Parameter bias;    ///< (out,), or undefined
};

/// The rows of a table by index: i64 of any shape -> index.shape() + (features,). A sparse layer:
/// rows that no index names have a gradient of 0.
class Embedding : public Module {
 public:
  /// weight ~ N(0, 1), as in PyTorch. Throws ShapeError for a size below 1.
  Embedding(std::int64_t rows, std::int64_t features, DType dtype = DType::f32);

  Tensor forward(const Tensor& index) override { return embedding(weight, index); }
  void visit(Visitor& p) override { p("weight", weight); }

  Parameter weight;  ///< (rows, features)
};

/// x + inner(x) (He et al., "Deep residual learning", CVPR 2016). The inner module is named
/// "inner".
class Residual : public Module {
 public:
  template <std::derived_from<Module> M>
  explicit Residual(M inner) : inner_(std::make_unique<M>(std::move(inner))) {}

  Tensor forward(const Tensor& x) override { return x + (*inner_)(x); }
  void visit(Visitor& p) override { p("inner", *inner_); }

 private:
  std::unique_ptr<Module> inner_;
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

  template <std::derived_from<Module> M>
  void insert(std::size_t place, M module) {
    check<UsageError>(place <= size(), "[Sequential] insert at {} of {} modules", place, size());
    modules_.insert(modules_.begin() + static_cast<std::ptrdiff_t>(place),
                    std::make_unique<M>(std::move(module)));
  }

  Tensor forward(const Tensor& x) override;
  void visit(Visitor& p) override;

  std::size_t size() const { return modules_.size(); }
  /// Throws UsageError for a module that does not exist.
  Module& operator[](std::size_t i) const {
    check<UsageError>(i < size(), "[Sequential] module {} of {}", i, size());
    return *modules_[i];
  }
  /// Module i as what it is: model.at<nn::Linear>(0). Throws UsageError if it is something else.
  template <std::derived_from<Module> M>
  M& at(std::size_t i) const {
    M* const module = dynamic_cast<M*>(&(*this)[i]);
    check<UsageError>(module != nullptr, "[Sequential] module {} is a {}, not what was asked for",
                      i, (*this)[i].describe());
    return *module;
  }

 private:
  std::vector<std::unique_ptr<Module>> modules_;
};

}  // namespace lockstep::nn
