#include "state.h"

#include <fmt/format.h>

namespace train_mlp {

using namespace lockstep;

namespace {

/// The widths of the layers. Checks the data against them, before anything is built.
std::vector<std::int64_t> widths(const Options& options, const data::TrainTest& set) {
  const std::int64_t pixels = set.train["x"].size(1);
  std::vector<std::int64_t> layers = options.layers;
  if (layers.empty()) layers = {pixels, 128, 64, 10};
  check<DataError>(layers.front() == pixels,
                   "--layers: the first layer has {} inputs, but the images in '{}' have {} pixels",
                   layers.front(), options.data, pixels);
  data::check_labels(set.train, layers.back());
  data::check_labels(set.test, layers.back());
  return layers;
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
  const double weight_decay = o.weight_decay.value_or(o.optimizer == "adamw" ? 0.01 : 0);
  const double lr = o.lr.value_or(o.optimizer == "sgd"    ? 0.1
                                  : o.optimizer == "lion" ? 0.0003
                                                          : 0.001);
  if (o.optimizer == "sgd")
    return std::make_unique<optim::SGD>(
        std::move(parameters),
        optim::SGD::Options{
            .lr = lr, .momentum = o.momentum.value_or(0.9), .weight_decay = weight_decay});
  if (o.optimizer == "rmsprop")
    return std::make_unique<optim::RMSprop>(
        std::move(parameters),
        optim::RMSprop::Options{
            .lr = lr, .weight_decay = weight_decay, .momentum = o.momentum.value_or(0)});
  if (o.optimizer == "lion")
    return std::make_unique<optim::Lion>(
        std::move(parameters), optim::Lion::Options{.lr = lr, .weight_decay = weight_decay});
  if (o.optimizer == "adam")
    return std::make_unique<optim::Adam>(
        std::move(parameters), optim::Adam::Options{.lr = lr, .weight_decay = weight_decay});
  return std::make_unique<optim::AdamW>(
      std::move(parameters), optim::AdamW::Options{.lr = lr, .weight_decay = weight_decay});
}

/// The training set and the test set, with enough samples in both.
data::TrainTest load(const Options& options) {
  data::TrainTest set = data::load_idx(options.data);
  check<DataError>(set.train.size() > 0 && set.test.size() > 0,
                   "--data '{}': {} training and {} test samples are too few", options.data,
                   set.train.size(), set.test.size());
  return set;
}

nn::Sequential seeded_model(const Options& options, const std::vector<std::int64_t>& layers,
                            Device device) {
  manual_seed(options.seed);
  nn::Sequential model = make_model(layers);
  model.to(device);  // before the optimizer and DDP are made
  return model;
}

}  // namespace

State::State(const Options& given, const World& world)
    : options(given),
      set(load(options)),
      layers(widths(options, set)),
      device(options.device.choose(world.local_rank())),
      model(seeded_model(options, layers, device)),
      optimizer(make_optimizer(options, model.parameters())) {
  shared_.add("model", model);
  shared_.add("optimizer", *optimizer);
  shared_.add("losses", losses_);
  shared_.add("epoch", epoch);
  shared_.add("position", position);
  shared_.add("step", step);
  if (options.precision.name == "f16") shared_.add("scaler", scaler.emplace());
}

// An epoch's end is one more than its last step.
void State::share(const World& world) {
  log.forget();
  optimizer->zero_grad();
  shared_.share(world, step + epoch);
}

nn::StateDict State::Losses::state_dict() const {
  std::vector<double> all{state.loss_sum, state.loss_samples, state.result.train_loss};
  all.insert(all.end(), state.result.losses.begin(), state.result.losses.end());
  return {{"losses", Tensor::of<double>({std::ssize(all)}, all)}};
}

void State::Losses::load_state_dict(const nn::StateDict& shared) {
  const std::vector<double> all = shared.at("losses").to_vector<double>();
  state.loss_sum = all.at(0);
  state.loss_samples = all.at(1);
  state.result.train_loss = all.at(2);
  state.result.losses.assign(all.begin() + 3, all.end());
}

}  // namespace train_mlp
