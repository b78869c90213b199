#pragma once
/// Normalizations that look at one sample alone, and so need no other rank. (BatchNorm:
/// batch_norm.h.)

#include <cstdint>

#include "lockstep/autograd/ops.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

/// What they have in common.
class Norm : public Module {
 public:
  void visit(Visitor& p) override;
  std::string describe() const override;

  Parameter weight;  ///< a factor for each feature or channel, at first 1
  Parameter bias;    ///< the same, added, at first 0; undefined in RMSNorm

 protected:
  Norm(std::string_view layer, std::int64_t features, double eps, DType dtype, bool with_bias);
  /// Throws ShapeError, in the name of `layer`, unless that is the size of the last dimension.
  void check_last(std::string_view layer, const Tensor& x) const;
  std::int64_t features() const { return weight.value().numel(); }
  DType dtype() const { return weight.value().dtype(); }

  double eps_;
};

/// By the mean and variance of the last dimension, of size `features`: layer_norm (ops.h).
class LayerNorm : public Norm {
 public:
  /// Throws ShapeError for no features, UsageError for an eps below 0.
  explicit LayerNorm(std::int64_t features, double eps = 1e-5, DType dtype = DType::f32)
      : Norm("LayerNorm", features, eps, dtype, true) {}
  Tensor forward(const Tensor& x) override;
  Another make_another() const override {
    return std::make_unique<LayerNorm>(features(), eps_, dtype());
  }
};

/// By the root of the mean square of the last dimension: rms_norm (ops.h).
class RMSNorm : public Norm {
 public:
  /// Throws as LayerNorm's.
  explicit RMSNorm(std::int64_t features, double eps = 1e-6, DType dtype = DType::f32)
      : Norm("RMSNorm", features, eps, dtype, false) {}
  Tensor forward(const Tensor& x) override;
  Another make_another() const override {
    return std::make_unique<RMSNorm>(features(), eps_, dtype());
  }
};

/// Each group of neighbouring channels by its own mean and variance (Wu and He, "Group
/// normalization", ECCV 2018): x (n, channels, ...) -> the same shape.
class GroupNorm : public Norm {
 public:
  /// Throws ShapeError unless `groups` divides `channels`.
  GroupNorm(std::int64_t groups, std::int64_t channels, double eps = 1e-5,
            DType dtype = DType::f32);
  Tensor forward(const Tensor& x) override;
  Another make_another() const override {
    return std::make_unique<GroupNorm>(groups_, features(), eps_, dtype());
  }
  std::string describe() const override;

 private:
  std::int64_t groups_;
};

}  // namespace lockstep::nn
