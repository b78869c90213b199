#include "lockstep/nn/batch_norm.h"

#include <algorithm>
#include <map>
#include <vector>

#include "lockstep/autograd/checkpoint.h"
#include "lockstep/core/gpu/graph.h"
#include "lockstep/kernels/batch_norm.h"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/tree_reduce.h"

namespace lockstep::nn {
namespace {

using Life = std::weak_ptr<const void>;

/// A name that no other layer over this communicator has: layers that ranks run in another order
/// would mix their statistics. The ranks number layers of one name as they were made: "0.norm",
/// "0.norm (2)", and those without a name "layer 1", "layer 2".
std::string name_alone(const Life& life, const std::string& layer) {
  struct Known {
    Life life;
    std::map<std::string, int> layers;
  };
  thread_local std::vector<Known> all;
  std::erase_if(all, [](const Known& known) { return known.life.expired(); });
  const auto same = [&](const Known& known) {
    return !known.life.owner_before(life) && !life.owner_before(known.life);
  };
  auto here = std::ranges::find_if(all, same);
  if (here == all.end()) here = all.insert(all.end(), {life, {}});
  const int number = ++here->layers[layer];
  if (layer.empty()) return fmt::format("layer {}", number);
  return number == 1 ? layer : fmt::format("{} ({})", layer, number);
}

/// Counts a layer among those that its communicator synchronizes, as long as it lives.
class Counted {
 public:
  explicit Counted(std::shared_ptr<int> all) : all_(std::move(all)) { ++*all_; }
  Counted(const Counted& other) : Counted(other.all_) {}
  Counted& operator=(const Counted&) = delete;
  ~Counted() { --*all_; }

 private:
  std::shared_ptr<int> all_;
};

/// The peers by way of a communicator, whose messages lie on the host.
class Ranks final : public BatchReducer {
 public:
  Ranks(dist::Communicator& communicator, std::string layer)
      : communicator_(communicator),
        life_(communicator.membership().needed),
        counted_(communicator.membership().layers),
        given_(std::move(layer)),
        layer_(name_alone(life_, given_)) {}

  /// Of another layer.
  std::shared_ptr<Ranks> another() const {
    auto ranks = std::make_shared<Ranks>(*this);
    if (!life_.expired()) ranks->layer_ = name_alone(life_, given_);
    return ranks;
  }

  double merge(double count, const Tensor& mean, const Tensor& m2) override {
    check_call();
    const std::int64_t ranks = communicator_.size(), c = mean.numel();
    const Tensor mine = Tensor::full({1 + 2 * c}, count, DType::f64);
    mine.slice(1, 1 + c).copy_from(mean);
    mine.slice(1 + c, 1 + 2 * c).copy_from(m2);
    const Tensor all = Tensor::empty({ranks, 1 + 2 * c}, DType::f64);
    communicator_.all_gather(mine, all, name_of("forward", c)).wait();

    std::vector<kernels::RowStatistics> parts;
    for (std::int64_t r = 0; r < ranks; ++r) {
      const Tensor row = all.slice(r, r + 1).view({1 + 2 * c});
      parts.push_back({*row.data<double>(), row.slice(1, 1 + c), row.slice(1 + c, 1 + 2 * c)});
    }
    kernels::merge_statistics(parts);
    mean.copy_from(parts[0].mean);
    m2.copy_from(parts[0].m2);
    return parts[0].count;
  }

  void add(const Tensor& sums) override {
    check_call();
    const Tensor host = sums.to(Device{});  // the same memory if it lies there
    communicator_.all_reduce(host, name_of("backward", sums.numel() / 2)).wait();
    if (sums.device() != host.device()) sums.copy_from(host);
  }

 private:
  // A model outlives the worlds of a job that goes on without lost ranks.
  void check_call() const {
    check<StateError>(!life_.expired(),
                      "[batch_norm] the world with which layer '{}' was synchronized has ended: "
                      "call convert_sync_batchnorm for each world, in the body of survive()",
                      layer_);
    check<NotRecordable>(
        !StepGraph::noting() || !StepGraph::recording(),
        "[batch_norm] layer '{}' is synchronized by way of the host, in a step that "
        "is recorded: take such steps as they are (ddp.recordable() tells)",
        layer_);
  }
  // "1: batch_norm 64 channels, forward". The layer comes first: errors show the beginning of the
  // other rank's name.
  std::string name_of(std::string_view direction, std::int64_t channels) const {
    return fmt::format("{}: batch_norm {} channels, {}", layer_, channels, direction);
  }

  dist::Communicator& communicator_;
  Life life_;
  Counted counted_;
  std::string given_, layer_;
};

Tensor as_f64(const Tensor& x) {
  const Tensor result = Tensor::empty(x.shape(), DType::f64, x.device());
  kernels::cast(x, result);
  return result;
}

/// running := (1 - momentum) * running + momentum * factor * batch, rounded once.
void follow(const Tensor& running, const Tensor& batch, double momentum, double factor) {
  const Tensor value = as_f64(running);
  kernels::scale(1 - momentum, value, value, false);
  kernels::scale(momentum * factor, batch, value, true);
  kernels::cast(value, running);
  running.storage().changed();
}

/// On its device, which is not waited for.
void increment(const Tensor& counter) {
  const Tensor one = Tensor::full(counter.shape(), 1, DType::i64, counter.device());
  const std::byte* const terms[] = {counter.raw(), one.raw()};
  std::byte* const sum[] = {counter.raw()};
  kernels::tree_reduce(DType::i64, terms, sum, 1, counter.device());
  counter.storage().changed();
}

}  // namespace

BatchNorm::BatchNorm(std::int64_t channels, const BatchNormOptions& options)
    : channels_(channels), options_(options) {
  check<ShapeError>(channels > 0, "[BatchNorm] channels must be positive, got {}", channels);
  check<UsageError>(options.eps >= 0, "[BatchNorm] eps must not be negative, got {}", options.eps);
  const double momentum = options.momentum.value_or(0);
  check<UsageError>(momentum >= 0 && momentum <= 1,
                    "[BatchNorm] momentum must be in [0, 1], got {}", momentum);
  if (options.affine) {
    weight = Parameter(Tensor::full({channels}, 1, options.dtype));
    bias = Parameter(Tensor::zeros({channels}, options.dtype));
  }
  if (options.track_running_stats) {
    running_mean = Tensor::zeros({channels}, options.dtype);
    running_var = Tensor::full({channels}, 1, options.dtype);
    num_batches_tracked = Tensor::zeros({}, DType::i64);
  }
}

Module::Another BatchNorm::make_another() const {
  auto another = std::make_unique<BatchNorm>(channels_, options_);
  if (peers_) another->peers_ = static_cast<const Ranks&>(*peers_).another();
  return another;
}

std::string BatchNorm::describe() const {
  return fmt::format("{}({})", peers_ ? "SyncBatchNorm" : "BatchNorm", channels_);
}

void BatchNorm::visit(Visitor& p) {
  p("weight", weight);
  p("bias", bias);
  p("running_mean", running_mean);
  p("running_var", running_var);
  p("num_batches_tracked", num_batches_tracked);
}

void BatchNorm::synchronize(dist::Communicator& communicator, std::string layer) {
  peers_ =
      communicator.size() > 1 ? std::make_shared<Ranks>(communicator, std::move(layer)) : nullptr;
}

// The kernels take rows of channels: (N, C, L) is brought to (N * L, C), and back.
Tensor BatchNorm::forward(const Tensor& x) {
  check<ShapeError>(x.rank() >= 2 && x.size(1) == channels_,
                    "[BatchNorm] expected (N, {}) or (N, {}, ...), got shape {}", channels_,
                    channels_, x.shape());
  if (x.rank() == 2) return normalize(x, x.shape());
  std::int64_t length = 1;
  for (int dimension = 2; dimension < x.rank(); ++dimension) length *= x.size(dimension);
  const std::int64_t n = x.size(0);
  const Tensor rows =
      reshape(transpose(reshape(x, {n, channels_, length})), {n * length, channels_});
  const Tensor y = normalize(rows, x.shape());
  return reshape(transpose(reshape(y, {n, length, channels_})), x.shape());
}

Tensor BatchNorm::normalize(const Tensor& rows, const Shape& shape) {
  if (StepGraph::noting())
    StepGraph::depends_on(life(),
                          [this, then = std::weak_ptr(peers_)] { return peers_ == then.lock(); });
  if (!training() && running_mean.defined())
    return batch_norm(rows, weight, bias, {.mean = as_f64(running_mean), .m2 = as_f64(running_var)},
                      options_.eps);
  const BatchStatistics batch = batch_statistics(rows, training() ? peers_ : nullptr);
  check<ShapeError>(batch.count != 1,
                    "[BatchNorm] a batch needs more than 1 value per channel, got 1{}, shape {}{}",
                    batch.peers ? " on all ranks together" : "", shape,
                    batch.peers ? " on this one" : "");
  const Tensor y = batch_norm(rows, weight, bias, batch, options_.eps);
  if (training() && running_mean.defined() && batch.count > 0 && !recomputing()) track(batch);
  return y;
}

void BatchNorm::track(const BatchStatistics& batch) {
  increment(num_batches_tracked);
  const double momentum = options_.momentum ? *options_.momentum : 1 / num_batches_tracked.item();
  follow(running_mean, batch.mean, momentum, 1);
  follow(running_var, batch.m2, momentum, 1 / (batch.count - 1));
}

void convert_sync_batchnorm(Module& model, dist::Communicator& communicator) {
  model.for_each_module([&](const std::string& path, Module& module) {
    if (auto* layer = dynamic_cast<BatchNorm*>(&module)) layer->synchronize(communicator, path);
  });
}

void convert_sync_batchnorm(Module& model, const World& world) {
  convert_sync_batchnorm(model, world.layer_communicator());
}

}  // namespace lockstep::nn
