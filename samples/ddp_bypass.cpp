// `./lockstep sample ddp_bypass`: what happens to replicas whose gradients are not averaged, and
// that calling a module inside the model does not bypass the averaging.
//
// In PyTorch a DDP model synchronizes if it is called through its wrapper: code that reaches past
// the wrapper trains replicas which silently drift apart. Here synchronization hangs on the
// parameters, so there is nothing to reach past. Three trainings of the same model:
//   unsynced       without DDP: every replica steps on its own gradient
//   synced         with DDP
//   inner module   with DDP over the parameters of a wrapper, whose inner module is called directly

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/launch/report.h"
#include "lockstep/lockstep.h"
#include "lockstep/samples/common/figures.h"
#include "lockstep/samples/common/fixture.h"
#include "lockstep/samples/common/ranks.h"
#include "lockstep/tools/cli.h"

namespace {

using namespace lockstep;
using samples::Field;
using samples::fixed;

constexpr int gradient_decimals = 5, difference_decimals = 6;  // as published

struct Experiment {
  double lr = 0;
  Tensor weight, bias;                 // (out, in), (out,): every replica's start
  std::vector<std::vector<Tensor>> x;  // [step][rank]: (n, in)
  std::vector<Tensor> y;               // [step]: (n, out), for all ranks
};

Experiment read(const Field& fixture) {
  Experiment e;
  const Shape weight = fixture["weight_shape"].shape(2), x = fixture["x_shape"].shape(2),
              y = fixture["y_shape"].shape(2);
  if (x[1] != weight[1] || y != Shape{x[0], weight[0]})
    fixture["x_shape"].refuse(
        fmt::format("is {}, y_shape {} and weight_shape {}: they do not fit", x, y, weight));
  e.lr = fixture["lr"].number();
  e.weight = fixture["weight"].tensor(weight);
  e.bias = fixture["bias"].tensor({weight[0]});
  const Field inputs = fixture["x"], targets = fixture["y"];
  const std::size_t ranks = inputs[0].size();
  for (std::size_t step = 0; step < inputs.size(); ++step) {
    if (inputs[step].size() != ranks)
      inputs[step].refuse(fmt::format("is for {} ranks, x[0] for {}", inputs[step].size(), ranks));
    e.x.emplace_back();
    for (std::size_t rank = 0; rank < ranks; ++rank)
      e.x.back().push_back(inputs[step][rank].tensor(x));
    e.y.push_back(targets[step].tensor(y));
  }
  return e;
}

/// A model with a module inside, which can be called past it.
struct Wrapper : nn::Module {
  explicit Wrapper(const Experiment& e) : inner(e.weight.size(1), e.weight.size(0)) {
    inner.weight.value().copy_from(e.weight);
    inner.bias.value().copy_from(e.bias);
  }
  Tensor forward(const Tensor& x) override { return inner(x); }
  void visit(nn::Visitor& p) override { p("inner", inner); }

  nn::Linear inner;
};

enum class Way { unsynced, synced, inner_module };

/// What a training showed, the same on every rank.
struct Course {
  std::vector<std::vector<double>>
      grad00;  ///< [step][rank]: weight[0][0]'s, as the optimizer sees it
  std::vector<double>
      max_weight_difference;  ///< [step]: between rank 0 and another, after the step
};

std::vector<double> values_of(const Tensor& tensor) {
  const std::vector<float> values = tensor.to_vector<float>();
  return {values.begin(), values.end()};
}

double largest_difference(const std::vector<std::vector<double>>& of_ranks) {
  double largest = 0;
  for (const auto& values : of_ranks)
    for (std::size_t i = 0; i < values.size(); ++i)
      largest = samples::larger(largest, std::abs(values[i] - of_ranks[0][i]));
  return largest;
}

/// Collective.
Course train(const Experiment& e, Way way, const World& world, Device device) {
  Wrapper model(e);
  model.to(device);
  optim::SGD optimizer(model.parameters(), {.lr = e.lr});
  std::optional<dist::DistributedDataParallel> ddp;
  if (way != Way::unsynced) ddp.emplace(model.parameters(), model.buffers(), world);

  Course course;
  for (std::size_t step = 0; step < e.x.size(); ++step) {
    const Tensor x = e.x[step][static_cast<std::size_t>(world.rank())].to(device);
    const Tensor y = e.y[step].to(device);
    Tape tape;
    const Tensor prediction = way == Way::inner_module ? model.inner(x) : model(x);
    tape.backward(nn::mse(prediction, y));
    const double grad00 = values_of(model.inner.weight.gradient())[0];
    course.grad00.emplace_back();
    for (const auto& of_rank : samples::gather(world, {grad00}))
      course.grad00.back().push_back(of_rank[0]);
    ddp ? optimizer.step() : optimizer.step(optim::local);  // step() alone would ask for a ddp
    optimizer.zero_grad();
    course.max_weight_difference.push_back(
        largest_difference(samples::gather(world, values_of(model.inner.weight.value()))));
  }
  return course;
}

struct Column {
  Way way;
  const char* title;
  const char* key;       // in the summary
  const char* expected;  // in the fixture: what was published
  Course course = {};
};

void print(const std::vector<Column>& columns) {
  const std::size_t steps = columns[0].course.grad00.size(),
                    ranks = columns[0].course.grad00[0].size();
  const std::size_t width = std::max<std::size_t>(14, 10 * ranks);
  fmt::print("Gradient of weight[0][0], as the optimizer sees it\n    ");
  for (const Column& column : columns) fmt::print("  {:>{}}", column.title, width);
  fmt::print("\nstep");
  for (std::size_t c = 0; c < columns.size(); ++c) {
    std::string heads;
    for (std::size_t rank = 0; rank < ranks; ++rank)
      heads += fmt::format("{:>10}", fmt::format("rank {}", rank));
    fmt::print("  {:>{}}", heads, width);
  }
  for (std::size_t step = 0; step < steps; ++step) {
    fmt::print("\n{:>4}", step);
    for (const Column& column : columns) {
      std::string figures;
      for (const double gradient : column.course.grad00[step])
        figures += fmt::format("{:>10}", fixed(gradient, gradient_decimals));
      fmt::print("  {:>{}}", figures, width);
    }
  }
  fmt::print(
      "\n\nLargest difference between rank 0's weight and another rank's, after the step\nstep");
  for (const Column& column : columns) fmt::print("  {:>14}", column.title);
  for (std::size_t step = 0; step < steps; ++step) {
    fmt::print("\n{:>4}", step);
    for (const Column& column : columns)
      fmt::print("  {:>14}", fixed(column.course.max_weight_difference[step], difference_decimals));
  }
  fmt::print("\n\n");
}

/// With what was published about this column, as far as the fixture has it.
void compare(samples::Comparison& comparison, const Column& column, const Field& fixture) {
  if (!fixture.has(column.expected)) return;
  const Field expected = fixture[column.expected];
  const std::size_t steps = column.course.grad00.size();
  const auto published = [&](const std::string& key) {
    const Field field = expected[key];
    if (field.size() != steps)
      field.refuse(fmt::format("has {} figures, there are {} steps", field.size(), steps));
    return field.numbers();
  };
  for (std::size_t rank = 0; rank < column.course.grad00[0].size(); ++rank) {
    const std::string own = fmt::format("grad00_rank{}", rank);
    if (!expected.has(own) && !expected.has("grad00")) continue;
    const auto figures = published(expected.has(own) ? own : "grad00");  // one for all ranks
    for (std::size_t step = 0; step < steps; ++step)
      comparison.expect(fmt::format("{}, gradient at step {} of rank {}", column.title, step, rank),
                        column.course.grad00[step][rank], figures[step], gradient_decimals);
  }
  if (!expected.has("max_weight_difference")) return;
  const auto figures = published("max_weight_difference");
  for (std::size_t step = 0; step < steps; ++step)
    comparison.expect(fmt::format("{}, weight difference after step {}", column.title, step),
                      column.course.max_weight_difference[step], figures[step],
                      difference_decimals);
}

/// Replicas under DDP see the same gradient and hold the same weights, bit for bit.
bool in_lockstep(const Course& course) {
  for (const auto& of_ranks : course.grad00)
    for (const double gradient : of_ranks)
      if (gradient != of_ranks[0]) return false;
  for (const double difference : course.max_weight_difference)
    if (difference != 0) return false;
  return true;
}

void write_json(const std::string& path, const std::vector<Column>& columns) {
  nlohmann::ordered_json json;
  for (const Column& column : columns)
    json[column.key] = {{"grad00", column.course.grad00},
                        {"max_weight_difference", column.course.max_weight_difference}};
  cli::write_json(path, json);
}

void run_rank(const Field& fixture, const Experiment& experiment,
              const samples::RunOptions& options, const World& world) {
  std::vector<Column> columns = {
      {Way::unsynced, "unsynced", "unsynced", "expected_unsynced"},
      {Way::synced, "synced", "synced", "expected_synced"},
      {Way::inner_module, "inner module", "inner_module", "expected_synced"}};
  const Device device = options.device.choose(world.local_rank());
  for (Column& column : columns) column.course = train(experiment, column.way, world, device);
  if (world.rank() != 0) return;

  fmt::print(
      "Replicas with and without synchronized gradients: Linear({}, {}), {} ranks, {} steps\n\n",
      experiment.weight.size(1), experiment.weight.size(0), world.size(), experiment.x.size());
  print(columns);
  if (!options.json.empty()) write_json(options.json, columns);
  samples::Comparison comparison;
  for (const Column& column : columns) {
    compare(comparison, column, fixture);
    if (column.way != Way::unsynced)
      comparison.claim(
          fmt::format("{}: gradients and weights are the same on all ranks", column.title),
          in_lockstep(column.course));
  }
  fmt::print("synced and inner module: no drift. {}\n", comparison.verdict());
}

int run(int argc, char** argv) {
  samples::RunOptions options;
  std::string path = LOCKSTEP_SAMPLES_DATA "/fixtures/ddp_bypass.json";
  cli::App app("Replicas with and without synchronized gradients", "lockstep sample ddp_bypass");
  app.add_option("--fixture", path, "The experiment (samples/data/fixtures/ddp_bypass.json)");
  samples::add_options(app, options, "as many as the fixture has inputs for");
  if (!samples::parse(app, options, argc, argv)) return 0;
  const Field fixture = Field::read(path);
  const Experiment experiment = read(fixture);
  samples::set_ranks(options, static_cast<int>(experiment.x[0].size()), "the fixture");
  return samples::run_ranks(options, 1, argc, argv, [&](const World& world) {
    run_rank(fixture, experiment, options, world);
  });
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return run(argc, argv); });
}
