#pragma once
/// Normalizations that look at one sample alone, and so need no other rank. BatchNorm has a file of
/// its own.

#include <cstdint>

#include "lockstep/autograd/ops.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

/// By the mean and variance of the last dimension, of size `features`: layer_norm (ops.h).
class LayerNorm : public Module {
 public:
  /// weight (features,) is 1 and bias 0 at first. Throws ShapeError for no features, UsageError for
  /// an eps below 0.
  explicit LayerNorm(std::int64_t features, double eps = 1e-5, DType dtype = DType::f32);

  Tensor forward(const Tensor& x) override;
  void visit(Visitor& p) override;
  Another make_another() const override {
    return std::make_unique<LayerNorm>(weight.value().numel(), eps_, weight.value().dtype());
  }
  std::string describe() const override;

  Parameter weight, bias;  ///< (features,)

 private:
  double eps_;
};

/// By the root of the mean square of the last dimension: rms_norm (ops.h).
class RMSNorm : public Module {
 public:
  /// Throws as LayerNorm's.
  explicit RMSNorm(std::int64_t features, double eps = 1e-6, DType dtype = DType::f32);

  Tensor forward(const Tensor& x) override;
  void visit(Visitor& p) override;
  Another make_another() const override {
    return std::make_unique<RMSNorm>(weight.value().numel(), eps_, weight.value().dtype());
  }
  std::string describe() const override;

  Parameter weight;  ///< (features,), at first 1

 private:
  double eps_;
};

/// Each group of neighbouring channels by its own mean and variance (Wu and He, "Group
/// normalization", ECCV 2018): x (n, channels, ...) -> the same shape.
class GroupNorm : public Module {
 public:
  /// Throws ShapeError unless `groups` divides `channels`.
  GroupNorm(std::int64_t groups, std::int64_t channels, double eps = 1e-5,
            DType dtype = DType::f32);

  Tensor forward(const Tensor& x) override;
  void visit(Visitor& p) override;
  Another make_another() const override {
    const Tensor& w = weight.value();
    return std::make_unique<GroupNorm>(groups_, w.numel(), eps_, w.dtype());
  }
  std::string describe() const override;

  Parameter weight, bias;  ///< (channels,), at first 1 and 0

 private:
  std::int64_t groups_;
  double eps_;
};

}  // namespace lockstep::nn
