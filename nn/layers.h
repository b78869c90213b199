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
  Another make_another() const override;

  Parameter weight;  ///< (out, in)
  Parameter bias;    ///< (out,), or undefined

 protected:
  Tensor forward_relu(const Tensor& x, bool for_product) override;
};

/// The rows of a table by index: i64 of any shape -> index.shape() + (features,). A sparse layer:
/// rows that no index names have a gradient of 0.
class Embedding : public Module {
 public:
  /// weight ~ N(0, 1), as in PyTorch. Throws ShapeError for a size below 1.
  Embedding(std::int64_t rows, std::int64_t features, DType dtype = DType::f32);

  Tensor forward(const Tensor& index) override { return embedding(weight, index); }
  void visit(Visitor& p) override { p("weight", weight); }
  std::string describe() const override;
  Another make_another() const override;

  Parameter weight;  ///< (rows, features)
};

/// x + inner(x) (He et al., "Deep residual learning", CVPR 2016). The inner module is named
/// "inner".
class Residual : public Module {
 public:
  /// Takes the inner module.
  template <std::derived_from<Module> M>
  explicit Residual(M inner) : inner_(std::make_unique<M>(std::move(inner))) {}
  explicit Residual(std::unique_ptr<Module> inner) : inner_(std::move(inner)) {
    check<UsageError>(inner_ != nullptr, "[Residual] of no module");
  }

  Tensor forward(const Tensor& x) override { return x + (*inner_)(x); }
  void visit(Visitor& p) override { p("inner", *inner_); }
  Another make_another() const override {
    return std::make_unique<Residual>(inner_->make_another());
  }

 private:
  std::unique_ptr<Module> inner_;
};

/// Modules one after another; part i is named "i". A Linear and the ReLU behind it run as one
/// operation, linear_relu. Make it with braces: then C++ makes the parts
/// from left to right, and they draw PyTorch's numbers. The order in parentheses is the compiler's.
///
///   nn::Sequential model{nn::Linear(64, 128), nn::ReLU(), nn::Linear(128, 10)};
///   for (nn::Module& layer : model) ...        // model[0] is the first
///   model.at<nn::Linear>("0").weight           // as what it is
class Sequential : public Module {
  using Modules = std::vector<std::unique_ptr<Module>>;

 public:
  /// Takes the modules, in order.
  template <std::derived_from<Module>... Parts>
  requires(sizeof...(Parts) > 0) explicit Sequential(Parts... parts) {
    (append(std::move(parts)), ...);
  }
  Sequential() = default;

  /// Behind the last module.
  template <std::derived_from<Module> M>
  void append(M module) {
    insert(size(), std::move(module));
  }
  /// Before module `place`. Throws UsageError for a place beyond the end.
  template <std::derived_from<Module> M>
  void insert(std::size_t place, M module) {
    insert(place, std::make_unique<M>(std::move(module)));
  }
  void insert(std::size_t place, std::unique_ptr<Module> module);

  Tensor forward(const Tensor& x) override;
  void visit(Visitor& p) override;
  Another make_another() const override;

  /// How many modules there are, not counting those within them.
  std::size_t size() const { return modules_.size(); }
  /// Throws UsageError for a module that does not exist.
  Module& operator[](std::size_t i) const;

  /// Goes over the modules themselves.
  class Iterator {
   public:
    explicit Iterator(Modules::const_iterator at) : at_(at) {}
    Module& operator*() const { return **at_; }
    Iterator& operator++() {
      ++at_;
      return *this;
    }
    bool operator==(const Iterator&) const = default;

   private:
    Modules::const_iterator at_;
  };
  /// For a range-for over the modules.
  Iterator begin() const { return Iterator(modules_.begin()); }
  Iterator end() const { return Iterator(modules_.end()); }

 private:
  Modules modules_;
};

}  // namespace lockstep::nn
