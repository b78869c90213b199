// `./lockstep sample stragglers`: ranks of different speed.
//
// 1. Synchronous training waits for the slowest rank in every step. One rank is made to take 1.5
//    times as long as the others. No clock outside times it: each rank's message at the end of
//    backward says how long it computed and how long it waited (for others, and for the messages
//    themselves), so all ranks know who the slowest is. Nothing else changes: its gradients arrive
//    late, and they arrive.
//
// 2. Local SGD (Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019): each rank
//    takes its own steps, and all average their parameters every n steps. Messages get fewer.
//    Waiting gets less if a different rank is slow each time, since ranks then catch up with one
//    another between two meetings; if it is always the same one, all wait for it as before. The
//    price: between meetings the replicas drift apart, and as many steps do not teach them as much.
//
// Times are printed, and depend on the machine. The sample checks values: whichever rank is slow,
// the parameters at the end are the same bit for bit.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/dist/collectives/object_collectives.h"
#include "lockstep/kernels/reduce.h"
#include "lockstep/launch/report.h"
#include "lockstep/lockstep.h"
#include "lockstep/samples/common/figures.h"
#include "lockstep/samples/common/ranks.h"
#include "lockstep/tools/cli.h"

namespace {

using namespace lockstep;

constexpr double slowdown = 1.5;
constexpr int nobody = -1, rounds = 3;

struct Options : samples::RunOptions {
  std::int64_t steps = 48, batch = 192, hidden = 384;
  std::uint64_t seed = 0;
};

/// Which rank is slow, by step. The same on every rank.
using Schedule = std::vector<int>;

/// What all trainings of a rank have in common.
struct Setup {
  std::uint64_t seed;
  std::int64_t hidden;
  Device device;
  std::vector<data::Batch> batches;  // by step: this rank's, of as many rows on every rank
  data::IdxDataset train, test;
  double usual = 0;  // seconds that this rank computes per step when it is not slow
};

Setup prepare(const Options& o, const World& world) {
  const Device device = o.device.choose(world.local_rank());
  auto [train, test] = data::load_idx(LOCKSTEP_SAMPLES_DATA "/digits");
  std::vector<data::Batch> batches;
  for (int epoch = 0; std::ssize(batches) < o.steps; ++epoch)
    for (const data::Batch& batch : data::Loader(
             train,
             {.batch = o.batch, .shuffle = true, .seed = o.seed, .padded = true, .device = device},
             world, epoch))
      if (std::ssize(batches) < o.steps) batches.push_back(batch);
  return {o.seed, o.hidden, device, std::move(batches), std::move(train), std::move(test)};
}

/// Does part of the work again, for so long, and throws the result away.
void dawdle(nn::Module& model, const Tensor& x, double seconds) {
  const auto clock = [] { return std::chrono::steady_clock::now(); };
  const auto end = clock() + std::chrono::duration<double>(seconds);
  while (clock() < end) (void)sum(model(x)).item();  // item() waits for a GPU
}

/// The parameters of all ranks, and how far those of any rank are from rank 0's. Collective.
double drift(const std::vector<Parameter>& parameters, const World& world) {
  double largest = 0;
  for (const Parameter& parameter : parameters) {
    const auto values = parameter.value().to_vector<float>();
    const auto all = samples::gather(world, {values.begin(), values.end()});
    for (const auto& of_rank : all)
      for (std::size_t i = 0; i < of_rank.size(); ++i)
        if (const double difference = std::abs(of_rank[i] - all[0][i]); !(difference <= largest))
          largest = difference;  // NaN, too
  }
  return largest;
}

struct Outcome {
  double milliseconds = 0;                  // per step
  std::vector<double> compute_ms, wait_ms;  // by rank, per step; only with DDP's gradients
  double loss = 0, accuracy = 0;            // of rank 0 at the end: training set, test set
  double drift = 0;                         // before an averaging, where it was largest
  std::vector<std::string> digests;         // by rank: of the parameters at the end
};

void evaluate(nn::Module& model, const Setup& setup, Outcome& outcome) {
  const auto logits = [&](const data::TensorDataset& set) {
    return model(set["x"].to(setup.device));
  };
  outcome.loss = nn::cross_entropy(logits(setup.train), setup.train["y"].to(setup.device)).item();
  const Tensor guess = Tensor::empty({setup.test.size()}, DType::i64, setup.device);
  kernels::argmax(logits(setup.test), guess);
  const auto guesses = guess.to_vector<std::int64_t>();
  const auto labels = setup.test["y"].span<std::int64_t>();
  double right = 0;
  for (std::size_t i = 0; i < guesses.size(); ++i) right += guesses[i] == labels[i] ? 1 : 0;
  outcome.accuracy = right / static_cast<double>(guesses.size());
}

/// Trains from the start. `every` = 0: gradients are synchronized in each step. Else: ranks step on
/// their own gradients and average their parameters every so many steps. With `look`, the outcome
/// has loss, accuracy and drift; seeing the drift takes extra time. Collective.
Outcome train(const Setup& setup, std::int64_t every, const Schedule& slow, const World& world,
              bool look = false) {
  manual_seed(setup.seed);
  nn::Sequential model{nn::Linear(64, setup.hidden), nn::ReLU(),
                       nn::Linear(setup.hidden, setup.hidden), nn::ReLU(),
                       nn::Linear(setup.hidden, 10)};
  model.to(setup.device);
  optim::SGD optimizer(model.parameters(), {.lr = 0.2});
  dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), world);
  dist::Communicator& communicator = world.communicator();

  Outcome outcome;
  communicator.barrier("start").wait();
  const dist::Seconds start = communicator.now();
  const std::int64_t steps = std::ssize(slow);
  for (std::int64_t step = 0; step < steps; ++step) {
    const auto i = static_cast<std::size_t>(step);
    const data::Batch& batch = setup.batches[i];
    if (slow[i] == world.rank()) dawdle(model, batch.x, (slowdown - 1) * setup.usual);
    Tape tape;  // without sync, as in a no_sync() scope: the gradients stay this rank's own
    tape.backward(nn::cross_entropy(model(batch.x), batch.y), batch.weight, {.sync = every == 0});
    if (every == 0)
      optimizer.step();
    else
      optimizer.step(optim::local);  // divergence on purpose: step() alone would refuse
    optimizer.zero_grad();
    if (every == 0 || ((step + 1) % every != 0 && step + 1 < steps)) continue;
    if (look) outcome.drift = std::max(outcome.drift, drift(model.parameters(), world));
    ddp.average_parameters();
  }
  communicator.barrier("end").wait();
  const double per_step = 1e3 / static_cast<double>(steps);
  outcome.milliseconds = per_step * (communicator.now() - start).count();
  for (const double seconds : ddp.statistics().compute_seconds)
    outcome.compute_ms.push_back(per_step * seconds);
  for (const double seconds : ddp.statistics().wait_seconds)
    outcome.wait_ms.push_back(per_step * seconds);
  if (look) evaluate(model, setup, outcome);
  outcome.digests = dist::gather_text(communicator, parameter_digest(model.parameters()));
  return outcome;
}

bool identical(const Outcome& outcome) {
  return std::set(outcome.digests.begin(), outcome.digests.end()).size() == 1;
}

// 1. One slow rank.

struct Straggling {
  Outcome even, slow;
  std::size_t slowest() const {
    return static_cast<std::size_t>(std::ranges::max_element(slow.compute_ms) -
                                    slow.compute_ms.begin());
  }
};

void print(const Straggling& s, std::size_t slow_rank) {
  fmt::print(
      "1. Rank {} is made slow, by a pause of {:.0f} % of its usual time: ms per step, as "
      "measured\n\n",
      slow_rank, 100 * (slowdown - 1));
  fmt::print("{:<10}{:>24}{:>24}\n", "", "all alike", fmt::format("rank {} slow", slow_rank));
  fmt::print("{:<10}{:>14}{:>10}{:>14}{:>10}\n", "", "computes", "waits", "computes", "waits");
  for (std::size_t rank = 0; rank < s.even.digests.size(); ++rank)
    fmt::print("{:<10}{:>14.2f}{:>10.2f}{:>14.2f}{:>10.2f}{}\n", fmt::format("rank {}", rank),
               s.even.compute_ms[rank], s.even.wait_ms[rank], s.slow.compute_ms[rank],
               s.slow.wait_ms[rank],
               rank == s.slowest() ? fmt::format("   slowest: {:.2f} times as long",
                                                 s.slow.compute_ms[rank] / s.even.compute_ms[rank])
                                   : "");
  fmt::print("{:<10}{:>24.2f}{:>24.2f}\n\n", "in all", s.even.milliseconds, s.slow.milliseconds);
}

// 2. Local SGD.

/// The same training with each kind of slowness.
struct Row {
  std::int64_t every = 0;          // steps between averagings; 0: gradients, each step
  Outcome alike;                   // no rank is slow
  std::vector<Outcome> same, any;  // always the same rank; any rank, at random: by round
};

double milliseconds(const std::vector<Outcome>& outcomes) {
  std::vector<double> all;
  for (const Outcome& outcome : outcomes) all.push_back(outcome.milliseconds);
  return samples::median(all);
}

void print(const std::vector<Row>& rows, std::size_t slow_rank) {
  fmt::print("2. Synchronizing every n steps; times are medians of {} trainings\n\n", rounds);
  fmt::print("{:<24}{:>26}{:>30}{:>16}\n", "", "ms per step, if slow is",
             "at the end: loss, accuracy", "replicas differ");
  fmt::print("{:<24}{:>13}{:>13}{:>15}{:>15}{:>16}\n", "synchronized",
             fmt::format("always {}", slow_rank), "drawn anew", "(training)", "(test)",
             "before a mean");
  for (const Row& row : rows)
    fmt::print(
        "{:<24}{:>13.2f}{:>13.2f}{:>15.4f}{:>14.1f}%{:>16.3f}\n",
        row.every == 0 ? "gradients,    n =  1" : fmt::format("parameters,   n = {:>2}", row.every),
        milliseconds(row.same), milliseconds(row.any), row.alike.loss, 100 * row.alike.accuracy,
        row.alike.drift);
  fmt::print("\n");
}

void write_json(const std::string& path, const Straggling& s, std::size_t slow_rank,
                const std::vector<Row>& rows) {
  const auto of = [](const Outcome& outcome) {
    return nlohmann::ordered_json{{"compute_ms", outcome.compute_ms},
                                  {"wait_ms", outcome.wait_ms},
                                  {"ms_per_step", outcome.milliseconds},
                                  {"digests", outcome.digests}};
  };
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Row& row : rows)
    list.push_back({{"every", row.every},
                    {"ms_per_step_same_slow", milliseconds(row.same)},
                    {"ms_per_step_any_slow", milliseconds(row.any)},
                    {"loss", row.alike.loss},
                    {"accuracy", row.alike.accuracy},
                    {"drift", row.alike.drift},
                    {"digests", row.any.back().digests}});
  cli::write_json(path, {{"all_alike", of(s.even)},
                         {"one_slow", of(s.slow)},
                         {"slow_rank", slow_rank},
                         {"slowest", s.slowest()},
                         {"synchronized", list}});
}

std::string verdict(const Straggling& straggling, const std::vector<Row>& rows) {
  samples::Comparison comparison;
  comparison.claim("gradients: one slow rank changes nothing",
                   straggling.slow.digests == straggling.even.digests);
  for (const Row& row : rows) {
    const std::string name = fmt::format("synchronized every {} steps", row.every);
    comparison.claim(name + ": all replicas are identical at the end", identical(row.alike));
    for (const auto* outcomes : {&row.same, &row.any})
      for (const Outcome& outcome : *outcomes)
        comparison.claim(name + ": whoever is slow, the same parameters",
                         outcome.digests == row.alike.digests);
  }
  (void)comparison.verdict();
  return "Between means of parameters replicas differ; after the last one they are equal, bit for "
         "bit. "
         "And\nwhoever is slow, they end with the same bits: no gradient is lost.";
}

void run_rank(const Options& o, const World& world) {
  Setup setup = prepare(o, world);
  const auto steps = static_cast<std::size_t>(o.steps);
  const Schedule alike(steps, nobody), same(steps, world.size() - 1);
  Schedule any(steps);
  const Tensor drawn = Tensor::empty({o.steps}, DType::i64);
  Generator(o.seed).randint(0, world.size(), drawn);
  std::ranges::copy(drawn.span<std::int64_t>(), any.begin());

  (void)train(setup, 0, alike, world);  // memory is touched for the first time
  Straggling straggling;
  straggling.even = train(setup, 0, alike, world);
  setup.usual = straggling.even.compute_ms[static_cast<std::size_t>(world.rank())] / 1e3;
  straggling.slow = train(setup, 0, same, world);
  std::vector<Row> rows;
  for (const std::int64_t every : {0, 1, 2, 4, 8, 16})
    rows.push_back({every, train(setup, every, alike, world, true), {}, {}});
  for (int round = 0; round < rounds; ++round)  // in turns: the machine may have other work, too
    for (Row& row : rows) {
      row.same.push_back(train(setup, row.every, same, world));
      row.any.push_back(train(setup, row.every, any, world));
    }
  if (world.rank() != 0) return;

  fmt::print("Ranks of different speed: digits, 64-{0}-{0}-10, {1} rank{2}, {3} steps\n\n",
             o.hidden, world.size(), world.size() == 1 ? "" : "s", o.steps);
  const auto slow_rank = static_cast<std::size_t>(world.size() - 1);
  print(straggling, slow_rank);
  print(rows, slow_rank);
  if (!o.json.empty()) write_json(o.json, straggling, slow_rank, rows);
  fmt::print("{}\n", verdict(straggling, rows));
}

int run(int argc, char** argv) {
  Options o;
  cli::App app("Ranks of different speed", "lockstep sample stragglers");
  app.add_option("--steps", o.steps, "Steps per training (48)").check(cli::whole_number());
  app.add_option("--batch", o.batch, "Samples per rank and step (192; simulated 16)")
      .check(cli::whole_number());
  app.add_option("--hidden", o.hidden, "Width of both hidden layers (384; simulated 32)")
      .check(cli::whole_number());
  app.add_option("--seed", o.seed, "Seed of weights, samples and slow ranks (0)")
      .check(cli::whole_number<std::uint64_t>());
  samples::add_options(app, o, "2; in a launcher's world: its size");
  if (!samples::parse(app, o, argc, argv)) return 0;
  if (o.device.device == "sim") {  // which is hundreds of times slower
    if (!app.count("--batch")) o.batch = 16;
    if (!app.count("--hidden")) o.hidden = 32;
  }
  check<UsageError>(std::min({o.steps, o.batch, o.hidden}) > 0,
                    "--steps {} --batch {} --hidden {}: all must be positive", o.steps, o.batch,
                    o.hidden);
  return samples::run_ranks(o, 2, argc, argv, [&](const World& world) { run_rank(o, world); });
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return run(argc, argv); });
}
