// `./lockstep sample ddp_concepts`: the three things that data parallelism is made of, in one
// process with a thread per rank. Each rank takes its own part of the samples; an all-reduce adds
// the ranks' gradients; equal replicas that take equal steps stay equal.

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/dist/collectives/plan/plan.h"
#include "lockstep/launch/report.h"
#include "lockstep/lockstep.h"
#include "lockstep/samples/common/figures.h"
#include "lockstep/samples/common/ranks.h"
#include "lockstep/tools/cli.h"

namespace {

using namespace lockstep;

constexpr int ranks = 4;
constexpr std::int64_t samples_in_all = 20, batch = 5;

// 1. The samples.

using Indices = std::vector<std::int64_t>;

/// The samples of each rank in epoch 0, in its order.
std::vector<Indices> shards() {
  const auto order = data::epoch_permutation(samples_in_all, true, 0, 0).to_vector<std::int64_t>();
  std::vector<Indices> result;
  for (int rank = 0; rank < ranks; ++rank) {
    const data::EpochPlan plan(samples_in_all, {.batch = batch}, {rank, ranks});
    result.emplace_back();
    for (std::int64_t step = 0; step < plan.steps(); ++step)
      for (std::int64_t row = 0; row < plan.rows(step); ++row)
        result.back().push_back(order[static_cast<std::size_t>(plan.position(step, row))]);
  }
  return result;
}

bool each_once(const std::vector<Indices>& shards) {
  std::multiset<std::int64_t> seen;
  for (const Indices& shard : shards) seen.insert(shard.begin(), shard.end());
  std::multiset<std::int64_t> expected;
  for (std::int64_t i = 0; i < samples_in_all; ++i) expected.insert(i);
  return seen == expected;
}

void print(const std::vector<Indices>& shards) {
  fmt::print("1. Every rank takes its own part of the {} samples, in an order that all know\n\n",
             samples_in_all);
  for (std::size_t rank = 0; rank < shards.size(); ++rank) {
    fmt::print("   rank {}  ", rank);
    for (const std::int64_t index : shards[rank]) fmt::print("{:>4}", index);
    fmt::print("\n");
  }
}

// 2. The all-reduce.

/// What each rank holds: a number in each of its parts. Rank r's are multiples of 10^r, so that a
/// digit tells whose share a sum contains.
using State = std::vector<Indices>;

State start() {
  State state;
  std::int64_t unit = 1;
  for (int rank = 0; rank < ranks; ++rank, unit *= 10) {
    state.emplace_back();
    for (std::int64_t part = 1; part <= ranks; ++part) state.back().push_back(part * unit);
  }
  return state;
}

dist::Plan ring_plan(int rank) {
  dist::Plan plan;
  dist::make_plan({.operation = dist::Operation::all_reduce,
                   .algorithm = dist::Algorithm::ring,
                   .rank = rank,
                   .world = ranks,
                   .count = ranks},
                  plan);
  return plan;
}

/// The state after one step of the plan: all ranks send what they held before it.
State after(const State& before, int index) {
  State result = before;
  for (int rank = 0; rank < ranks; ++rank) {
    const dist::Step step = ring_plan(rank)[static_cast<std::size_t>(index)];
    const Indices& sender = before[static_cast<std::size_t>(step.from)];
    Indices& own = result[static_cast<std::size_t>(rank)];
    for (std::int64_t i = step.receive.begin; i < step.receive.end; ++i) {
      const auto at = static_cast<std::size_t>(i);
      own[at] = step.into == dist::Step::Into::sum ? own[at] + sender[at] : sender[at];
    }
  }
  return result;
}

void print(const State& state, int step) {
  const auto steps = static_cast<int>(ring_plan(0).size());
  fmt::print("\n");
  for (int rank = 0; rank < ranks; ++rank) {
    fmt::print("   rank {}  ", rank);
    const Indices& own = state[static_cast<std::size_t>(rank)];
    for (const std::int64_t value : own) fmt::print("{:>6}", value);
    if (step < steps) {
      const dist::Step next = ring_plan(rank)[static_cast<std::size_t>(step)];
      const bool sum = next.into == dist::Step::Into::sum;
      fmt::print("    {:>4} to rank {}, which {} it",
                 own[static_cast<std::size_t>(next.send.begin)], next.to, sum ? "adds" : "keeps");
    }
    fmt::print("\n");
  }
}

/// Prints and returns the states from the start to the end.
std::vector<State> all_reduce() {
  fmt::print(
      "\n2. An all-reduce over a ring: {} numbers on each rank, their sums everywhere in the end\n",
      ranks);
  std::vector<State> states = {start()};
  const auto steps = static_cast<int>(ring_plan(0).size());
  for (int step = 0; step <= steps; ++step) {
    print(states.back(), step);
    if (step < steps) states.push_back(after(states.back(), step));
  }
  return states;
}

/// The same with the communicator that trainings use.
State real_all_reduce() {
  State result(ranks);
  run_threads(ranks, {.comm = "ring"}, [&](const World& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    const Tensor data = Tensor::of({ranks}, start()[rank]);
    world.communicator().all_reduce(data, "numbers").wait();
    result[rank] = data.to_vector<std::int64_t>();
  });
  return result;
}

// 3. The updates.

/// The digests of every rank's parameters at some moment.
struct Moment {
  std::string name;
  std::vector<std::string> digests;
  bool identical() const {
    return std::all_of(digests.begin(), digests.end(),
                       [&](const std::string& digest) { return digest == digests[0]; });
  }
};

std::vector<Moment> train(const std::vector<Indices>& shards, const cli::DeviceOptions& options) {
  std::vector<Moment> moments;
  run_threads(ranks, {}, [&](const World& world) {
    const Device device = options.choose(world.local_rank());
    manual_seed(static_cast<std::uint64_t>(world.rank()));  // on purpose: not the same start
    nn::Sequential model{nn::Linear(3, 8), nn::ReLU(), nn::Linear(8, 1)};
    model.to(device);
    optim::SGD optimizer(model.parameters(), {.lr = 0.1, .momentum = 0.9});
    const auto note = [&](std::string name) {  // collective
      Moment moment{std::move(name),
                    dist::gather_text(world.communicator(), parameter_digest(model.parameters()))};
      if (world.rank() == 0) moments.push_back(std::move(moment));
    };
    note("as each rank made it");
    const dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), world);
    note("when DDP is made");
    std::vector<float> x, y;  // of this rank's samples alone
    for (const std::int64_t index : shards[static_cast<std::size_t>(world.rank())]) {
      const auto t = static_cast<float>(index) / samples_in_all;
      x.insert(x.end(), {t, t * t, 1 - t});
      y.push_back(t < 0.5f ? t : 1 - t);
    }
    const auto rows = static_cast<std::int64_t>(y.size());
    const Tensor inputs = Tensor::of({rows, 3}, x).to(device),
                 targets = Tensor::of({rows, 1}, y).to(device);
    for (int step = 1; step <= 3; ++step) {
      Tape tape;
      tape.backward(nn::mse(model(inputs), targets));
      optimizer.step();
      optimizer.zero_grad();
      note(fmt::format("after step {}", step));
    }
  });
  return moments;
}

void print(const std::vector<Moment>& moments) {
  fmt::print(
      "\n3. Replicas that step on the same gradient stay the same: the parameters' SHA-256\n\n");
  fmt::print("   {:<22}", "");
  for (int rank = 0; rank < ranks; ++rank) fmt::print("  {:>10}", fmt::format("rank {}", rank));
  for (const Moment& moment : moments) {
    fmt::print("\n   {:<22}", moment.name);
    for (const std::string& digest : moment.digests) fmt::print("  {:>10}", digest.substr(0, 8));
  }
  fmt::print("\n\n");
}

int run(int argc, char** argv) {
  cli::DeviceOptions device;
  std::string json;
  cli::App app("Shards, an all-reduce and identical updates", "lockstep sample ddp_concepts");
  cli::add_options(app, device);
  app.add_option("--json", json, "Write a machine-readable summary");
  if (!app.parse(argc, argv)) return 0;
  (void)device.choose(0);
  cli::check_writable("--json", json);

  const std::vector<Indices> parts = shards();
  print(parts);
  const std::vector<State> states = all_reduce();
  const std::vector<Moment> moments = train(parts, device);
  print(moments);
  if (!json.empty()) {
    nlohmann::ordered_json digests;
    for (const Moment& moment : moments) digests[moment.name] = moment.digests;
    cli::write_json(json, {{"shards", parts}, {"all_reduce", states}, {"digests", digests}});
  }

  samples::Comparison comparison;
  comparison.claim("every sample is taken once", each_once(parts));
  comparison.claim("the last state holds the sums everywhere",
                   states.back() == State(ranks, {1111, 2222, 3333, 4444}));
  comparison.claim("the communicator's all-reduce gives the same",
                   real_all_reduce() == states.back());
  comparison.claim("the ranks' own models differ", !moments.front().identical());
  for (std::size_t k = 1; k < moments.size(); ++k)
    comparison.claim(moments[k].name + ", the replicas are identical", moments[k].identical());
  (void)comparison.verdict();
  fmt::print("Every sample once, the same sums everywhere, identical replicas.\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return run(argc, argv); });
}
