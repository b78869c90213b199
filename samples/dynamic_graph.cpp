// `./lockstep sample dynamic_graph`: a model whose graph changes from step to step and from rank to
// rank. Each rank draws in each step which of four branches its rows take, or none.
//
//   x -> trunk -+-> branch 0..3 -+-> head -> loss
//               `----------------'
//
// A rank's loss reaches trunk, head and one branch at most: the other branches get no gradient from
// it, and from some steps none at all, on any rank. Two things must come out of this.
//   1. A gradient is the weighted sum over the ranks that took the branch; the other ranks add
//      nothing. A reducer that waits for gradients which never come hangs, so PyTorch's DDP must be
//      told (find_unused_parameters=True) to search the graph in every step. Here the tape knows
//      before the first backward kernel what the loss reaches, and there is nothing to tell.
//   2. A branch that no rank took has no gradient: the optimizer must leave it alone. With a
//      gradient of zero, momentum would move it.
// Both are checked against one process that runs all ranks' rows through a separate model.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lockstep/launch/report.h"
#include "lockstep/lockstep.h"
#include "lockstep/samples/common/figures.h"
#include "lockstep/samples/common/ranks.h"
#include "lockstep/tools/cli.h"

namespace {

using namespace lockstep;

constexpr std::int64_t branches = 4, none = branches, in = 8, hidden = 16;
constexpr double rounding = 1e-9;  // of f64 sums taken in another order, over all steps

struct Net : nn::Module {
  Tensor forward(const Tensor& x) override {
    const Tensor h = relu(trunk(x));
    return head(taken == none ? h : h + relu(branch[static_cast<std::size_t>(taken)](h)));
  }
  void visit(nn::Visitor& p) override {
    p("trunk", trunk);
    for (std::size_t i = 0; i < branch.size(); ++i) p(fmt::format("branch{}", i), branch[i]);
    p("head", head);
  }

  static nn::Linear layer(std::int64_t from, std::int64_t to) {
    return nn::Linear(from, to, true, DType::f64);
  }
  nn::Linear trunk = layer(in, hidden), head = layer(hidden, 1);
  std::array<nn::Linear, branches> branch = {layer(hidden, hidden), layer(hidden, hidden),
                                             layer(hidden, hidden), layer(hidden, hidden)};
  std::int64_t taken = none;
};

/// What one rank does in one step.
struct Share {
  std::int64_t branch = none;
  Tensor x, y;    // (rows, in), (rows, 1)
  Weight weight;  // its rows of all rows

  Tensor loss(Net& net) const {
    net.taken = branch;
    return nn::mse(net(x), y);
  }
};
using Step = std::vector<Share>;  // by rank

/// All ranks draw all shares, each with its own number of rows: the same seed, the same draws. The
/// one process needs them; DDP is told its own rank's weight and nothing else.
std::vector<Step> draw(std::int64_t steps, int ranks, std::uint64_t seed, Device device) {
  Generator generator(seed);
  const Tensor taken = Tensor::empty({steps, ranks}, DType::i64);
  generator.randint(0, branches + 1, taken);
  std::vector<Step> result;
  for (std::int64_t step = 0; step < steps; ++step) {
    result.emplace_back();
    std::int64_t all_rows = 0;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const std::int64_t rows = 3 + (step + rank) % 3;
      const Tensor x = Tensor::empty({rows, in}, DType::f64),
                   y = Tensor::empty({rows, 1}, DType::f64);
      generator.normal(x);
      generator.normal(y);
      const std::int64_t branch =
          taken.span<std::int64_t>()[static_cast<std::size_t>(step * ranks + rank)];
      result.back().push_back(
          {branch, x.to(device), y.to(device), Weight{static_cast<double>(rows)}});
      all_rows += rows;
    }
    for (Share& share : result.back()) share.weight.total = static_cast<double>(all_rows);
  }
  return result;
}

/// The largest difference between two models' gradients, over the largest gradient; infinite if
/// only one of them has a gradient for some parameter.
double difference_of(const std::vector<Parameter>& ours, const std::vector<Parameter>& theirs) {
  double largest = 0, scale = 0;
  for (std::size_t k = 0; k < ours.size(); ++k) {
    const Tensor a = ours[k].gradient(), b = theirs[k].gradient();
    if (a.defined() != b.defined()) return HUGE_VAL;
    if (!a.defined()) continue;
    const auto x = a.to_vector<double>(), y = b.to_vector<double>();
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double difference = std::abs(x[i] - y[i]);
      if (!(difference <= largest)) largest = difference;  // NaN, too
      scale = std::max(scale, std::abs(y[i]));
    }
  }
  return scale > 0 ? largest / scale : largest;
}

/// What a step showed.
struct Outcome {
  std::vector<std::string> with_gradient;  ///< parameters; the same on all ranks
  double difference = 0;  ///< from the one process, on the rank where it is largest
};

/// Collective.
std::vector<Outcome> train(const std::vector<Step>& steps, std::uint64_t seed, const World& world,
                           Device device) {
  manual_seed(seed);
  Net net, alone;  // under DDP, and in one process
  alone.load_state_dict(net.state_dict());
  net.to(device);
  alone.to(device);
  const std::vector<Parameter> ours = net.parameters(), theirs = alone.parameters();
  const optim::SGD::Options options{.lr = 0.05, .momentum = 0.9};
  optim::SGD optimizer(ours, options), alone_optimizer(theirs, options);
  const dist::DistributedDataParallel ddp(ours, net.buffers(), world);

  std::vector<Outcome> outcomes;
  for (const Step& step : steps) {
    {
      const Share& mine = step[static_cast<std::size_t>(world.rank())];
      Tape tape;
      tape.backward(mine.loss(net), mine.weight);
    }
    for (const Share& share : step) {  // one after another: gradients add up
      Tape tape;
      tape.backward(share.loss(alone), share.weight);
    }
    Outcome outcome;
    for (const Parameter& parameter : ours)
      if (parameter.gradient().defined()) outcome.with_gradient.push_back(parameter.name());
    for (const auto& of_rank : samples::gather(world, {difference_of(ours, theirs)}))
      if (!(of_rank[0] <= outcome.difference)) outcome.difference = of_rank[0];
    outcomes.push_back(std::move(outcome));
    optimizer.step();
    alone_optimizer.step(optim::local);  // all ranks do the same, and sum nothing
    for (optim::SGD* each : {&optimizer, &alone_optimizer}) each->zero_grad();
  }
  return outcomes;
}

std::string name_of(std::int64_t branch) {
  return branch == none ? "none" : fmt::format("branch{}", branch);
}

bool has_gradient(const Outcome& outcome, const std::string& module) {
  return std::ranges::count(outcome.with_gradient, module + ".weight") > 0;
}

void print(const std::vector<Step>& steps, const std::vector<Outcome>& outcomes) {
  const std::size_t ranks = steps[0].size();
  const std::size_t width = std::max<std::size_t>(14, 9 * ranks);
  std::vector<std::string> modules = {"trunk"};
  for (std::int64_t branch = 0; branch < branches; ++branch) modules.push_back(name_of(branch));
  modules.emplace_back("head");
  fmt::print("      {:>{}}   {:<51}  difference from\nstep  ", "branch taken by", width,
             "has a gradient (-: used by no rank)");
  std::string heads;
  for (std::size_t rank = 0; rank < ranks; ++rank)
    heads += fmt::format("{:>9}", fmt::format("rank {}", rank));
  fmt::print("{:>{}}   ", heads, width);
  for (const std::string& module : modules) fmt::print("{:<9}", module);
  fmt::print("{:>13}", "one process");
  for (std::size_t step = 0; step < steps.size(); ++step) {
    std::string taken;
    for (const Share& share : steps[step]) taken += fmt::format("{:>9}", name_of(share.branch));
    fmt::print("\n{:>4}  {:>{}}   ", step, taken, width);
    for (const std::string& module : modules)
      fmt::print("{:<9}", has_gradient(outcomes[step], module) ? "yes" : "-");
    fmt::print("{:>13.1e}", outcomes[step].difference);
  }
  fmt::print("\n\n");
}

void write_json(const std::string& path, const std::vector<Step>& steps,
                const std::vector<Outcome>& outcomes) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (std::size_t step = 0; step < steps.size(); ++step) {
    nlohmann::ordered_json taken = nlohmann::ordered_json::array();
    for (const Share& share : steps[step]) taken.push_back(name_of(share.branch));
    list.push_back({{"taken", taken},
                    {"with_gradient", outcomes[step].with_gradient},
                    {"difference", outcomes[step].difference}});
  }
  cli::write_json(path, {{"steps", list}});
}

int run(int argc, char** argv) {
  samples::RunOptions options;
  std::int64_t count = 12;
  std::uint64_t seed = 0;
  cli::App app("A branch taken at random per rank and step", "lockstep sample dynamic_graph");
  app.add_option("--steps", count, "Steps (12)").check(cli::whole_number());
  app.add_option("--seed", seed, "Seed of branches, data and weights (0)")
      .check(cli::whole_number<std::uint64_t>());
  samples::add_options(app, options, "2; in a launcher's world: its size");
  if (!samples::parse(app, options, argc, argv)) return 0;
  check<UsageError>(count > 0, "--steps must be positive, got {}", count);

  return samples::run_ranks(options, 2, argc, argv, [&](const World& world) {
    const Device device = options.device.choose(world.local_rank());
    const std::vector<Step> steps = draw(count, world.size(), seed, device);
    const std::vector<Outcome> outcomes = train(steps, seed, world, device);
    if (world.rank() != 0) return;
    fmt::print("A model with a branch taken at random: {} rank{}, {} steps, no flag set\n\n",
               world.size(), world.size() == 1 ? "" : "s", count);
    print(steps, outcomes);
    if (!options.json.empty()) write_json(options.json, steps, outcomes);
    samples::Comparison comparison;
    double largest = 0;
    for (std::size_t step = 0; step < steps.size(); ++step) {
      const double difference = outcomes[step].difference;
      comparison.claim(fmt::format("step {}: the gradients are those of one process", step),
                       difference <= rounding);
      largest = std::max(largest, difference);
      for (std::int64_t branch = 0; branch < branches; ++branch)
        comparison.claim(
            fmt::format("step {}: {} has a gradient if a rank took it", step, name_of(branch)),
            has_gradient(outcomes[step], name_of(branch)) ==
                std::ranges::any_of(steps[step],
                                    [&](const Share& s) { return s.branch == branch; }));
    }
    (void)comparison.verdict();
    fmt::print("The gradients of one process on all rows, {}.\n",
               largest == 0 ? "bit for bit" : fmt::format("to {:.1e} of the largest", largest));
  });
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return run(argc, argv); });
}
