#pragma once
/// Batch normalization (Ioffe & Szegedy, "Batch Normalization", ICML 2015), with PyTorch's formulas
/// and names, for one rank's batch or for that of all ranks.
///
///   training:    y = (x - mean) / sqrt(variance + eps) * weight + bias
///   evaluation:  the same with running_mean and running_var
///
/// per channel: over the N values of x (N, C), over the N * L of x (N, C, L), and so on. The
/// variance that normalizes is m2 / count, the one that is tracked m2 / (count - 1), where m2 is
/// the sum of the squared deviations from the mean.
///
/// Under DistributedDataParallel every rank normalizes with its own batch. A *synchronized* layer
/// normalizes with the union of the ranks' batches, which may differ in size or be empty:
///
///   forward    all-gather of [count, mean (C), m2 (C)], which each rank merges by Chan's formula
///   backward   all-reduce of [sum of dy (C), sum of dy * xhat (C)]
///
/// one message each, in f64, and none in evaluation. Every rank must therefore run each forward in
/// training, and each backward, in the same order: a rank without data runs them with N = 0. These
/// messages have their own communicator (World::layer_communicator), so that it does not matter
/// when the reducer's buckets travel.

#include <memory>
#include <optional>

#include "lockstep/autograd/ops.h"
#include "lockstep/dist/world/world.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

/// Of BatchNorm.
struct BatchNormOptions {
  double eps = 1e-5;
  /// running = (1 - momentum) * running + momentum * batch. Without a value: the average over all
  /// batches so far (it waits for the device, so such a step cannot be recorded).
  std::optional<double> momentum = 0.1;
  bool affine = true;               ///< with weight and bias
  bool track_running_stats = true;  ///< false: evaluation takes the batch's own statistics, too
  DType dtype = DType::f32;         ///< f32 or f64
};

class BatchNorm : public Module {
 public:
  /// Throws ShapeError for no channels, UsageError for an eps or a momentum that makes no sense.
  explicit BatchNorm(std::int64_t channels, const BatchNormOptions& options = {});

  /// x (N, C) or (N, C, ...) -> the same shape. Throws ShapeError for another C, and where the
  /// statistics are the batch's and that has exactly one value per channel, on all ranks together
  /// if it is synchronized: then on all of them. An empty batch changes nothing.
  Tensor forward(const Tensor& x) override;
  void visit(Visitor& p) override;
  Another make_another() const override;  ///< synchronized with the same ranks
  std::string describe() const override;

  /// From now on, the batch in training is that of all ranks. Once `communicator` has ended, the
  /// layer and the tapes on which it has recorded throw StateError. The ranks compare `layer`
  /// before they merge statistics: ranks that run other layers stop, by name. So all ranks
  /// synchronize (and clone) their layers in the same order: those without a name, or with the same
  /// one, are told apart by a number. convert_sync_batchnorm gives a layer's path.
  void synchronize(dist::Communicator& communicator, std::string layer = "");

  Parameter weight, bias;            ///< (C,), at first 1 and 0; or undefined
  Tensor running_mean, running_var;  ///< (C,), at first 0 and 1; or undefined
  Tensor num_batches_tracked;        ///< (), i64; or undefined

 private:
  Tensor normalize(const Tensor& rows, const Shape& shape);
  void track(const BatchStatistics& batch);

  std::int64_t channels_;
  BatchNormOptions options_;
  std::shared_ptr<BatchReducer> peers_;  // null in a world of 1
};

/// A BatchNorm that is synchronized from the start; of a world, with its layer_communicator().
inline BatchNorm SyncBatchNorm(std::int64_t channels, dist::Communicator& communicator,
                               const BatchNormOptions& options = {}, std::string layer = "") {
  BatchNorm norm(channels, options);
  norm.synchronize(communicator, std::move(layer));
  return norm;
}
inline BatchNorm SyncBatchNorm(std::int64_t channels, const World& world,
                               const BatchNormOptions& options = {}, std::string layer = "") {
  return SyncBatchNorm(channels, world.layer_communicator(), options, std::move(layer));
}

/// Synchronizes every BatchNorm of a model, in place, from now on with this world: where worlds
/// follow each other (dist/world/survive.h), call it for each. A layer that runs after its world
/// has ended throws StateError.
void convert_sync_batchnorm(Module& model, dist::Communicator& communicator);
void convert_sync_batchnorm(Module& model, const World& world);

}  // namespace lockstep::nn
