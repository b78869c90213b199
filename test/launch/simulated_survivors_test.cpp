// survive() in the simulated world: whoever dies, hangs, is cut off or comes, and whenever, the
// others end with the bits of an undisturbed run, and no two worlds go on.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <map>
#include <random>

#include "launch/simulated_job.h"
#include "lockstep/dist/world/survive.h"
#include "lockstep/lockstep.h"
#include "support/drill.h"
#include "support/expect.h"
#include "support/text.h"

using namespace lockstep;
using lockstep::test::expect;
using lockstep::test::JobOptions;
using lockstep::test::SimulatedJob;

namespace {

std::string message_of(const std::exception_ptr& error) {
  try {
    if (error) std::rethrow_exception(error);
    return "";
  } catch (const std::exception& e) {
    return e.what();
  }
}

struct Step {
  int generation;
  std::int64_t number;
  std::string digest;  ///< of parameters and buffers after it
};

constexpr std::int64_t rows = 22, batch = 8, epochs = 2;
constexpr std::int64_t last_step = epochs * ((rows + batch - 1) / batch);

/// Trains to the end, in survive(). SyncBatchNorm talks in forward, too.
void train(World& world, std::vector<Step>& taken) {
  manual_seed(5);
  const Tensor x = Tensor::randn({rows, 3});
  const data::TensorDataset set({{"x", x}, {"y", tanh(x.slice(0, rows))}});
  manual_seed(0);
  nn::Sequential model{nn::Linear(3, 5), nn::BatchNorm(5), nn::Tanh(), nn::Linear(5, 3)};
  optim::SGD optimizer(model.parameters(), {.lr = 0.1, .momentum = 0.9});
  std::int64_t epoch = 0, position = 0, step = 0;
  nn::Checkpoint shared;
  shared.add("model", model);
  shared.add("optimizer", optimizer);
  shared.add("epoch", epoch);
  shared.add("position", position);
  shared.add("step", step);
  survive(world, [&](World& now) {
    optimizer.zero_grad();
    shared.share(now, step);
    nn::convert_sync_batchnorm(model, now);
    dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), now);
    for (; epoch < epochs; ++epoch, position = 0) {
      const data::LoaderOptions options{
          .batch = batch, .shuffle = true, .begin = position, .lanes = 8};
      for (const data::Batch& part : data::Loader(set, options, now, static_cast<int>(epoch))) {
        {
          Tape tape;
          tape.backward(nn::mse(model(part["x"]), part["y"]), part.weight);
        }
        optimizer.step();
        optimizer.zero_grad();
        position = part.position;
        ++step;
        shared.mark();
        taken.push_back({now.generation(), step, parameter_digest(model.parameters())});
      }
    }
  });
}

/// By step, of a rank alone.
const std::vector<Step>& undisturbed() {
  static const std::vector<Step> steps = [] {
    std::vector<Step> taken;
    run_threads(1, {}, [&](World& world) { train(world, taken); });
    return taken;
  }();
  return steps;
}

struct Outcome {
  dist::SimReport report;
  std::vector<std::vector<Step>> taken;  ///< by rank
  bool failed;
  std::vector<bool> ended_well, suspected;
  std::string lines;
};

Outcome run(const JobOptions& options) {
  SimulatedJob job(options);
  Outcome outcome;
  outcome.taken.resize(dist::index(options.ranks) + options.come.size());
  outcome.report =
      job.run([&](int rank, World& world) { train(world, outcome.taken[dist::index(rank)]); });
  outcome.failed = job.failed();
  outcome.ended_well = job.ended_well();
  outcome.suspected = job.suspected();
  outcome.lines = job.lines();
  return outcome;
}

/// Whether ranks that were cut off from each other have ended the job: each waits for another one,
/// so nobody is to blame.
bool ended_by_partition(const JobOptions& options, const Outcome& o) {
  return !options.sim.partitions.empty() &&
         std::ranges::any_of(o.report.errors, [](const std::exception_ptr& error) {
           return test::contains(message_of(error), "ranks wait for each other");
         });
}

// The checks throw what is wrong.

/// Each step has the bits of the undisturbed run, and a rank never takes one twice: what others
/// have taken comes to it by share().
void check_steps(const Outcome& o) {
  for (std::size_t rank = 0; rank < o.taken.size(); ++rank)
    for (std::size_t i = 0; i < o.taken[rank].size(); ++i) {
      const Step& step = o.taken[rank][i];
      expect(step.digest == undisturbed().at(static_cast<std::size_t>(step.number - 1)).digest,
             "rank {}, step {}, generation {}: other bits\n{}", rank, step.number, step.generation,
             o.lines);
      if (i == 0) continue;
      const Step& before = o.taken[rank][i - 1];
      expect(step.number > before.number && step.generation >= before.generation,
             "rank {} takes step {} after {}\n{}", rank, step.number, before.number, o.lines);
    }
}

/// One world goes on: a step is taken again only if all who had taken it are lost.
void check_worlds(const Outcome& o) {
  std::map<std::int64_t, std::map<int, std::vector<std::size_t>>> who;  // by step and generation
  for (std::size_t rank = 0; rank < o.taken.size(); ++rank)
    for (const Step& step : o.taken[rank]) who[step.number][step.generation].push_back(rank);
  for (const auto& [number, generations] : who)
    for (auto it = generations.begin(); std::next(it) != generations.end(); ++it)
      for (const std::size_t rank : it->second)
        expect(o.report.lost[rank], "rank {} lives, and step {} of generation {} is repeated\n{}",
               rank, number, it->first, o.lines);
}

/// Nobody is killed who has not stood still. With a partition, messages have. Who waits for memory
/// that all share looks at the launcher only where ranks are processes: not here.
void check_suspicions(const JobOptions& options, const Outcome& o) {
  if (!options.sim.partitions.empty() || options.sim.shared_memory) return;
  for (std::size_t rank = 0; rank < o.taken.size(); ++rank) {
    const auto stood_still = [&](const dist::SimFault& fault) {
      return fault.kind == dist::SimFault::Kind::stall && dist::index(fault.rank) == rank;
    };
    expect(!o.suspected[rank] || std::ranges::any_of(options.sim.faults, stood_still),
           "rank {} was suspected\n{}", rank, o.lines);
  }
}

/// Whoever is not lost ends, without an error; and somebody does.
void check_ends(const Outcome& o) {
  std::int64_t furthest = 0;
  for (std::size_t rank = 0; rank < o.taken.size(); ++rank) {
    if (o.report.errors[rank]) std::rethrow_exception(o.report.errors[rank]);
    expect(o.ended_well[rank] || o.report.lost[rank] || o.taken[rank].empty(),
           "rank {} neither ended nor is lost\n{}", rank, o.lines);
    if (!o.taken[rank].empty()) furthest = std::max(furthest, o.taken[rank].back().number);
  }
  expect(furthest == last_step && std::ranges::count(o.ended_well, true) > 0,
         "step {} is the last\n{}", furthest, o.lines);
}

JobOptions scenario(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::uint64_t n) { return random() % n; };
  const auto one_of = [&](const auto&... all) { return std::array{all...}[below(sizeof...(all))]; };
  JobOptions options{.ranks = one_of(1, 2, 2, 3, 3, 3, 4, 4)};
  options.sim.seed = seed;
  options.sim.max_delay = one_of(1e-6, 1e-4, 1e-3, 1e-2) * dist::Seconds(1);
  options.sim.shared_memory = below(2) == 0;
  // On a slow link small channels would keep a rank waiting for longer than the timeout, while
  // bytes move elsewhere.
  const bool slow = options.sim.max_delay > dist::Seconds(5e-4);
  options.sim.channel_bytes = slow ? 1U << 20 : one_of(64U, 4096U, 1U << 20);

  // An undisturbed job lasts for about a hundred delays, and a rank makes some 1000 to 4000 calls.
  const auto moment = [&] { return static_cast<double>(below(100)) * options.sim.max_delay; };
  for (auto count = below(3); count > 0; --count) options.come.push_back(moment());
  std::ranges::sort(options.come);
  const auto size = dist::index(options.ranks) + options.come.size();
  for (auto count = below(5); count > 0; --count) {
    dist::SimFault fault{.rank = static_cast<int>(below(size)), .at_call = 2 + below(2000)};
    if (below(2) == 0) {
      fault.kind = dist::SimFault::Kind::stall;
      fault.duration = static_cast<double>(1 + below(2500)) * dist::Seconds(1e-3);
    }
    options.sim.faults.push_back(fault);
  }
  if (below(5) == 0) {
    const dist::Seconds begin = moment();
    const dist::Seconds length = static_cast<double>(1 + below(2500)) * dist::Seconds(1e-3);
    options.sim.partitions.push_back({begin, begin + length, {static_cast<int>(below(size))}});
  }
  return options;
}

/// How much of each the runs had.
struct Tally {
  std::map<std::string, std::int64_t> counts;

  void add(const JobOptions& options, const Outcome& o, bool ended) {
    counts["ranks lost"] += std::ranges::count(o.report.lost, true);
    counts["of them suspected"] += std::ranges::count(o.suspected, true);
    counts["jobs without a rank left"] += o.failed;
    counts["jobs that a partition ended"] += ended;
    for (std::size_t r = 0; r < o.taken.size(); ++r) {
      counts["ranks that came"] += dist::index(options.ranks) <= r && !o.taken[r].empty();
      for (std::size_t i = 1; i < o.taken[r].size(); ++i) {
        const Step &before = o.taken[r][i - 1], &step = o.taken[r][i];
        counts["changes of the world between steps"] += step.generation > before.generation;
        counts["steps taken over from a rank that was ahead"] += step.number - before.number - 1;
      }
    }
  }
  /// For `./lockstep drill`.
  ~Tally() {
    if (!std::getenv("LOCKSTEP_RUNS")) return;
    for (const auto& [what, count] : counts) fmt::print(stderr, "drill: {} {}\n", count, what);
  }
};

}  // namespace

TEST_CASE("drill survivors-simulated: one world goes on whatever happens and its bits are right") {
  REQUIRE(undisturbed().size() == last_step);
  Tally tally;
  const std::uint64_t runs = test::drill(100, [&](std::uint64_t seed) {
    const JobOptions options = scenario(seed);
    const Outcome o = run(options);
    const bool ended = ended_by_partition(options, o);
    check_steps(o);
    check_worlds(o);
    check_suspicions(options, o);
    if (!o.failed && !ended) check_ends(o);
    tally.add(options, o, ended);
  });
  if (runs < 100) return;
  for (const char* what :
       {"ranks lost", "of them suspected", "ranks that came", "changes of the world between steps"})
    CHECK_MESSAGE(tally.counts[what] > 5, what);
}

TEST_CASE(
    "simulated survivors: steps must be marked in the body, and neither before nor after it") {
  SimulatedJob job({.ranks = 3});
  int bodies = 0;
  const dist::SimReport report = job.run([&](int, World& world) {
    const std::shared_ptr<dist::Survival> before = world.communicator().membership().survival;
    expect(before && !before->in_body, "in the body before it begins");
    before->marked = false;  // as a step leaves it
    world.communicator().barrier("before").wait();
    survive(world, [&](World& now) {
      const std::shared_ptr<dist::Survival> survival = now.communicator().membership().survival;
      expect(survival->in_body && survival->marked, "a step of before counts");
      now.communicator().barrier("a").wait();
      survival->marked = false;
      test::expect_error<StateError>("mark", [&] { now.communicator().barrier("b").wait(); });
      survival->marked = true;
      now.communicator().barrier("c").wait();
      ++bodies;
    });
    const std::shared_ptr<dist::Survival> after = world.communicator().membership().survival;
    expect(!after->in_body, "still in the body");
    after->marked = false;
    world.communicator().barrier("after").wait();
  });
  for (const std::exception_ptr& error : report.errors) CHECK(message_of(error) == "");
  CHECK(bodies == 3);
}

TEST_CASE("simulated survivors: what has ended with a world is refused in the body that follows") {
  // Rank 1 is lost in its first body. The others' bodies leave something that uses the old world.
  JobOptions options{.ranks = 3};
  options.sim.faults = {{.rank = 1, .at_call = 800}};
  SimulatedJob job(options);
  std::array<int, 3> bodies{};
  const dist::SimReport report = job.run([&](int rank, World& world) {
    std::shared_ptr<dist::DistributedDataParallel> kept;
    const std::vector<Parameter> all{Parameter(Tensor::zeros({2}), "w")};
    survive(world, [&](World& now) {
      if (++bodies[dist::index(rank)] > 1) return;
      nn::Checkpoint shared;
      shared.share(now, 0);
      kept = std::make_shared<dist::DistributedDataParallel>(all, std::vector<Buffer>{}, now);
      while (true) now.communicator().barrier("until it is lost").wait();
    });
  });
  for (const int rank : {0, 2}) {
    const std::string said = message_of(report.errors[dist::index(rank)]);
    CHECK_MESSAGE(test::contains(said, "needs this world"), said);
    CHECK(bodies[dist::index(rank)] == 1);
  }
}
