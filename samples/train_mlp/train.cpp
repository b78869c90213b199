#include "train.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

#include "lockstep/kernels/reduce.h"
#include "lockstep/lockstep.h"
#include "progress.h"

namespace train_mlp {
namespace {

using namespace lockstep;

std::vector<std::int64_t> widths(const Options& options, const data::Dataset& train) {
  const std::int64_t pixels = train.images.size(1);
  if (options.layers.empty()) return {pixels, 128, 64, 10};
  check<DataError>(options.layers.front() == pixels,
                   "--layers: the first layer has {} inputs, but the images in '{}' have {} pixels",
                   options.layers.front(), options.data, pixels);
  return options.layers;
}

nn::Sequential make_model(const std::vector<std::int64_t>& layers) {
  nn::Sequential model;
  for (std::size_t i = 0; i + 1 < layers.size(); ++i) {
    if (i > 0) model.append(nn::ReLU());
    model.append(nn::Linear(layers[i], layers[i + 1]));
  }
  return model;
}

std::unique_ptr<optim::Optimizer> make_optimizer(const Options& o,
                                                 std::vector<Parameter> parameters) {
  if (o.optimizer == "sgd")
    return std::make_unique<optim::SGD>(
        std::move(parameters), optim::SGD::Options{.lr = o.lr.value_or(0.1),
                                                   .momentum = o.momentum.value_or(0.9),
                                                   .weight_decay = o.weight_decay.value_or(0)});
  const double lr = o.lr.value_or(0.001);
  if (o.optimizer == "adam")
    return std::make_unique<optim::Adam>(
        std::move(parameters),
        optim::Adam::Options{.lr = lr, .weight_decay = o.weight_decay.value_or(0)});
  return std::make_unique<optim::AdamW>(
      std::move(parameters),
      optim::AdamW::Options{.lr = lr, .weight_decay = o.weight_decay.value_or(0.01)});
}

std::shared_ptr<dist::CommunicationHook> make_hook(const std::string& name) {
  if (name == "bf16") return dist::compress(DType::bf16);
  if (name == "f16") return dist::compress(DType::f16);
  if (name == "powersgd") return dist::power_sgd();
  return nullptr;
}

/// The share of `set` that the model classifies rightly: every rank counts its own part, none
/// twice.
double accuracy(nn::Module& model, const data::Dataset& set, const World& world, Device device) {
  constexpr std::int64_t chunk = 512;  // rows at a time, to bound the memory
  const dist::Range mine = dist::partition(set.labels.numel(), world.size(), world.rank());
  const Tensor right = Tensor::zeros({1}, DType::i64);
  const bool was_training = model.training();
  model.eval();
  for (std::int64_t begin = mine.begin; begin < mine.end; begin += chunk) {
    const std::int64_t end = std::min(begin + chunk, mine.end);
    const Tensor guess = Tensor::empty({end - begin}, DType::i64, device);
    kernels::argmax(model(set.images.slice(begin, end).to(device)), guess);
    const auto labels = set.labels.slice(begin, end).span<std::int64_t>();
    const auto guesses = guess.to_vector<std::int64_t>();
    for (std::size_t i = 0; i < labels.size(); ++i)
      *right.data<std::int64_t>() += guesses[i] == labels[i];
  }
  model.train(was_training);
  world.communicator().all_reduce(right, "right answers").wait();
  return set.labels.numel() ? right.item() / static_cast<double>(set.labels.numel()) : 0;
}

/// One epoch's losses: on each rank, per step, the sum over its own samples; then over all ranks.
class LossLog {
 public:
  explicit LossLog(std::int64_t steps) : sums_(Tensor::zeros({steps}, DType::f64)) {
    steps_.reserve(static_cast<std::size_t>(steps));
  }

  // Kept as a tensor: on a GPU, reading it here would wait for every step.
  void add(const Tensor& mean_loss, const Weight& weight) {
    steps_.push_back({mean_loss.detach(), weight});
  }
  /// Collective. The global mean loss of every step, appended to `losses`; returns the epoch's.
  double finish(const World& world, std::vector<double>& losses) {
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      const auto& [loss, weight] = steps_[i];
      sums_.data<double>()[i] = weight.local > 0 ? loss.item() * weight.local : 0;
    }
    world.communicator().all_reduce(sums_, "losses").wait();
    double sum = 0, samples = 0;
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      losses.push_back(sums_.data<double>()[i] / steps_[i].weight.total);
      check<StateError>(std::isfinite(losses.back()),
                        "the loss of step {} is {}: the training has diverged (a smaller --lr?)",
                        losses.size() - 1, std::abs(losses.back()));
      sum += sums_.data<double>()[i];
      samples += steps_[i].weight.total;
    }
    samples_ = samples;
    return samples > 0 ? sum / samples : 0;
  }
  double samples() const { return samples_; }

 private:
  struct Step {
    Tensor loss;
    Weight weight;
  };
  Tensor sums_;
  std::vector<Step> steps_;
  double samples_ = 0;
};

std::vector<Replica> replicas(const std::vector<Parameter>& parameters, const World& world) {
  const std::string mine = fmt::format("{} {}", ::getpid(), dist::parameter_digest(parameters));
  std::vector<Replica> all;
  for (const std::string& text : dist::gather_text(world.communicator(), mine)) {
    const std::size_t space = text.find(' ');
    all.push_back(
        {static_cast<int>(all.size()), std::stoi(text.substr(0, space)), text.substr(space + 1)});
  }
  return all;
}

}  // namespace

Result train(const Options& options, const World& world) {
  const auto [train_set, test_set] = data::load_idx(options.data);
  check<DataError>(train_set.size() > 0 && test_set.size() > 0,
                   "--data '{}': {} training and {} test samples are too few", options.data,
                   train_set.size(), test_set.size());
  const std::vector<std::int64_t> layers = widths(options, train_set);
  data::check_labels(train_set, layers.back());
  data::check_labels(test_set, layers.back());

  const Device device = options.device.choose(world.local_rank());
  manual_seed(options.seed);
  nn::Sequential model = make_model(layers);
  model.to(device);
  const std::vector<Parameter> parameters = model.parameters();
  const auto optimizer = make_optimizer(options, parameters);
  dist::DistributedDataParallel ddp(parameters, model.buffers(), world,
                                    {.bucket_cap_mb = options.bucket_cap_mb,
                                     .rebuild_buckets = options.plan == "ready",
                                     .hook = make_hook(options.hook)});
  std::optional<optim::Overlap> overlap;
  if (options.overlap_optimizer) overlap.emplace(*optimizer, ddp);
  const data::LoaderOptions loading{.batch = options.batch,
                                    .shuffle = options.shuffle,
                                    .seed = options.seed,
                                    .padded = options.padded,
                                    .device = device};

  Result result;
  result.device = Device::name_of(device.kind);
  const std::size_t buckets = ddp.buckets().plan().buckets.size();
  const DType travels = options.hook == "bf16"  ? DType::bf16
                        : options.hook == "f16" ? DType::f16
                                                : DType::f32;
  const std::size_t elements = ddp.buckets().largest() / size_of(DType::f32);
  result.algorithm = world.communicator().algorithm(elements * size_of(travels), travels);
  Progress progress(world.rank() == 0, options.epochs);
  progress.begin(fmt::format(
      "{}: {} parameters in {} bucket{}\n"
      "{} rank{} with batches of {}{}{}\n"
      "{}{} training and {} test samples from {}",
      fmt::join(layers, "-"), ddp.buckets().elements(), buckets, buckets == 1 ? "" : "s",
      world.size(), world.size() == 1 ? "" : "s", options.batch,
      world.size() == 1
          ? ""
          : fmt::format(", {} all-reduce{} over {}", result.algorithm,
                        options.hook == "none" ? "" : " of " + options.hook, world.transport()),
      device == Device{} ? "" : fmt::format(", on {}", gpu::describe(device.index)),
      options.tune ? fmt::format("measured, all-reduces are {}\n", world.communicator().choices())
                   : "",
      train_set.size(), test_set.size(), options.data));

  double training_seconds = 0, samples = 0;
  std::uint64_t bytes = 0;
  for (std::int64_t epoch = 0; epoch < options.epochs; ++epoch) {
    const auto start = std::chrono::steady_clock::now();
    data::Loader loader(train_set, loading, world, static_cast<int>(epoch));
    LossLog log(loader.steps());
    const std::uint64_t bytes_before = world.communicator().bytes_moved();
    std::int64_t step = 0;
    for (const data::Batch& batch : loader) {
      Tape tape;
      const Tensor loss = nn::cross_entropy(model(batch.x), batch.y);
      tape.backward(loss, batch.weight);
      optimizer->step();
      optimizer->zero_grad();
      log.add(loss, batch.weight);
      progress.step(epoch, ++step, loader.steps());
    }
    bytes += world.communicator().bytes_moved() - bytes_before;
    result.train_loss = log.finish(world, result.losses);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    training_seconds += seconds.count();
    samples += log.samples();
    const double train_accuracy = accuracy(model, train_set, world, device);
    result.test_accuracy = accuracy(model, test_set, world, device);
    progress.epoch({.epoch = epoch,
                    .loss = result.train_loss,
                    .train_accuracy = train_accuracy,
                    .test_accuracy = result.test_accuracy,
                    .samples_per_second = log.samples() / seconds.count()});
  }
  result.samples_per_second = samples / training_seconds;
  result.bytes_per_step = static_cast<double>(bytes) /
                          static_cast<double>(std::max<std::size_t>(1, result.losses.size()));
  result.buckets = ddp.buckets().plan().buckets.size();
  result.bucket_layout = ddp.bucket_layout();
  result.statistics = ddp.statistics();
  result.kernel_launches = gpu::kernel_launches();
  result.replicas = replicas(parameters, world);
  result.replicas_identical = std::ranges::all_of(result.replicas, [&](const Replica& replica) {
    return replica.digest == result.replicas[0].digest;
  });
  if (!options.checkpoint.empty() && world.rank() == 0)
    nn::save_safetensors(options.checkpoint, model.state_dict(),
                         {{"bucket_layout", result.bucket_layout}});
  return result;
}

}  // namespace train_mlp
