// `./lockstep sample per_parameter_vs_buckets`: why gradients travel in buckets.
//
// A message of s bytes takes about latency + s / bandwidth. One message per parameter pays the
// latency for every bias; a single message for all gradients pays it once, but cannot leave before
// backward has ended. Buckets stand between: few messages, the first of which leave early. Here the
// same deep MLP is trained with a cap of 1 byte (a bucket per parameter), with two in between, and
// with one that holds everything.
//
// How gradients are cut into buckets must not change what is learnt. With `--comm direct` an
// element is summed over the ranks in the same order wherever it lies, so the parameters are the
// same bit for bit. (A ring's order of summation depends on the place of an element in its bucket.)

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/dist/collectives/choice.h"
#include "lockstep/dist/collectives/object_collectives.h"
#include "lockstep/launch/report.h"
#include "lockstep/lockstep.h"
#include "lockstep/samples/common/figures.h"
#include "lockstep/samples/common/ranks.h"
#include "lockstep/samples/common/simulated.h"
#include "lockstep/tools/cli.h"

namespace {

using namespace lockstep;

struct Options : samples::RunOptions {
  std::int64_t layers = 20, width = 64, batch = 16, steps = 10, rounds = 7;
  std::uint64_t seed = 0;
};

nn::Sequential make_model(const Options& o) {
  manual_seed(o.seed);
  nn::Sequential model;
  for (std::int64_t layer = 0; layer < o.layers; ++layer) {
    if (layer > 0) model.append(nn::ReLU());
    model.append(nn::Linear(o.width, o.width));
  }
  return model;
}

constexpr double mebi(double bytes) { return bytes / (1 << 20); }

/// One way to cut the gradients, with its own replica.
class Training {
 public:
  Training(std::string cap, double cap_mb, const Options& o, const World& world, Device device)
      : cap_(std::move(cap)),
        model_(make_model(o)),
        parameters_((model_.to(device), model_.parameters())),
        optimizer_(parameters_, {.lr = 0.01}),
        ddp_(parameters_, model_.buffers(), world,
             {.bucket_cap_mb = cap_mb, .first_bucket_mb = cap_mb, .last_bucket_mb = cap_mb}) {}

  void step(const Tensor& x, const Tensor& y) {
    Tape tape;
    tape.backward(nn::mse(model_(x), y));
    optimizer_.step();
    optimizer_.zero_grad();
  }

  /// Collective: every replica's, on every rank.
  std::vector<std::string> digests(const World& world) const {
    return dist::gather_text(world.communicator(), parameter_digest(parameters_));
  }
  const std::string& cap() const { return cap_; }
  const dist::GradientBuckets& buckets() const { return ddp_.buckets(); }
  std::size_t collectives() const { return buckets().all().size(); }  // per step

 private:
  std::string cap_;
  nn::Sequential model_;
  std::vector<Parameter> parameters_;
  optim::SGD optimizer_;
  dist::DistributedDataParallel ddp_;
};

/// What rank 0 has to tell of one way.
struct Row {
  std::string cap;
  std::size_t collectives = 0, largest_bucket = 0;  // per step; bytes
  double milliseconds = 0;                          // per step: the median over the rounds
  double ratio = 1;   // to one all-reduce per parameter, in the same round: the median ...
  double spread = 0;  // ... and the middle half of the rounds, as a part of it
  std::vector<std::string> digests;  // by rank
  bool direct = false;
};

/// Of each way's rounds to the first one's: the median, and the width of their middle half by it.
std::vector<std::pair<double, double>> ratios(const std::vector<std::vector<double>>& times) {
  std::vector<std::pair<double, double>> found;
  for (const std::vector<double>& way : times) {
    std::vector<double> all;
    for (std::size_t i = 0; i < way.size(); ++i) all.push_back(way[i] / times[0][i]);
    std::ranges::sort(all);
    const double median = all[all.size() / 2];
    found.emplace_back(median, (all[all.size() * 3 / 4] - all[all.size() / 4]) / median);
  }
  return found;
}

constexpr double steady = 0.2;  // a ratio that spreads wider says nothing
constexpr double idle = 0.05;   // on an idle machine a rank waits less than that for a core

bool is_steady(const std::vector<std::pair<double, double>>& all) {
  return std::ranges::all_of(all, [](const auto& one) { return one.second <= steady; });
}

/// Rank 0's answer, on all ranks.
bool agreed(const World& world, bool answer) {
  const Tensor known = Tensor::scalar(answer ? 1 : 0, DType::i64).view({1});
  world.communicator().broadcast(known, 0, "agreed").wait();
  return known.item() != 0;
}

struct Measured {
  std::vector<Row> rows;
  double without_core = 0;  ///< the share of the time in which a rank waited for a core: the worst
};

/// Collective.
Measured measure(const Options& o, const World& world) {
  const Device device = o.device.choose(world.local_rank());
  std::vector<std::unique_ptr<Training>> ways;
  const auto add = [&](std::string cap, double cap_mb) {
    ways.push_back(std::make_unique<Training>(std::move(cap), cap_mb, o, world, device));
  };
  add("1 byte", mebi(1));
  for (const int kib : {32, 128}) add(fmt::format("{} KiB", kib), mebi(1024.0 * kib));
  add("25 MiB", 25);

  Generator generator(o.seed + 1 + static_cast<std::uint64_t>(world.rank()));  // own data per rank
  const Tensor x = Tensor::empty({o.batch, o.width}), y = Tensor::empty({o.batch, o.width});
  generator.normal(x);
  generator.normal(y);
  const Tensor inputs = x.to(device), targets = y.to(device);

  // In turns, so that whatever else happens on the machine happens to all of them. The first round
  // is not counted: memory is touched for the first time, and buckets get their final order. Rounds
  // go on until their ratios agree, at most five times as many.
  dist::Communicator& communicator = world.communicator();
  std::vector<std::vector<double>> times(ways.size());
  const dist::Seconds begun = communicator.now();
  const double waited = samples::waited_for_core();
  for (std::int64_t round = 0; round <= 5 * o.rounds; ++round) {
    if (round > o.rounds && agreed(world, is_steady(ratios(times)))) break;
    for (std::size_t k = 0; k < ways.size(); ++k) {
      communicator.barrier("start").wait();
      const dist::Seconds start = communicator.now();
      for (std::int64_t step = 0; step < o.steps; ++step) ways[k]->step(inputs, targets);
      communicator.barrier("end").wait();
      const dist::Seconds seconds = communicator.now() - start;
      if (round > 0) times[k].push_back(1e3 * seconds.count() / static_cast<double>(o.steps));
    }
  }

  Measured measured;
  const double share = (samples::waited_for_core() - waited) / (communicator.now() - begun).count();
  for (const auto& of_rank : samples::gather(world, {share}))
    measured.without_core = samples::larger(measured.without_core, of_rank[0]);
  for (std::size_t k = 0; k < ways.size(); ++k) {
    const std::size_t largest = ways[k]->buckets().largest();
    const auto [ratio, spread] = ratios(times)[k];
    measured.rows.push_back({ways[k]->cap(), ways[k]->collectives(), largest,
                             samples::median(times[k]), ratio, spread, ways[k]->digests(world),
                             dist::adds_in_tree_order(communicator.algorithm(largest))});
  }
  return measured;
}

void print(const std::vector<Row>& rows, double without_core) {
  fmt::print("{:<10}{:>14}{:>16}{:>12}{:>18}   {}\n", "", "collectives", "largest bucket", "ms per",
             "of the time per", "parameters'");
  fmt::print("{:<10}{:>14}{:>16}{:>12}{:>18}   {}\n", "cap", "per step", "KiB", "step", "parameter",
             "SHA-256");
  for (const Row& row : rows)
    fmt::print("{:<10}{:>14}{:>16.1f}{:>12.2f}{:>17.0f}%   {}\n", row.cap, row.collectives,
               static_cast<double>(row.largest_bucket) / 1024, row.milliseconds, 100 * row.ratio,
               row.digests[0].substr(0, 12));
  fmt::print("\n");
  if (without_core > idle)
    fmt::print(
        "A rank waited for a core for {:.0f} % of this time: other work runs here, or there are "
        "more ranks\nthan cores. So much of each all-reduce is waiting, not bytes.\n\n",
        100 * without_core);
  const double widest = std::ranges::max(rows, {}, &Row::spread).spread;
  if (widest > steady)
    fmt::print("This machine is too busy to tell: ratios of single rounds differ by {:.0f} %.\n\n",
               100 * widest);
}

void write_json(const std::string& path, const std::vector<Row>& rows) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Row& row : rows)
    list.push_back({{"cap", row.cap},
                    {"collectives", row.collectives},
                    {"largest_bucket_bytes", row.largest_bucket},
                    {"ms_per_step", row.milliseconds},
                    {"ratio", row.ratio},
                    {"spread", row.spread},
                    {"digests", row.digests}});
  cli::write_json(path, {{"buckets", list}});
}

/// Which size is best, where bytes take time. Returns whether it lies between the extremes.
bool print_simulated() {
  fmt::print(
      "On slow links, in a simulated world: the real reducer and ring, but virtual time, so that "
      "everybody\nreads these figures. 2 ranks, 20 layers of 4 KB, 10 MB/s; backward takes 20 ms. "
      "Besides the time of\nits bytes, a message takes a random time, up to:\n\n"
      "ms exposed\nbuckets          0.2 ms     1 ms\n");
  constexpr int layers = 20;
  std::vector<std::vector<double>> all;
  for (const int layers_of_a_bucket : {1, 2, 5, 10, layers}) {
    all.emplace_back();
    for (const double message : {0.2, 1.0})
      all.back().push_back(samples::cost_of({.layers = layers,
                                             .layers_of_a_bucket = layers_of_a_bucket,
                                             .milliseconds = 0.5,
                                             .slower = 1,
                                             .message = message,
                                             .bandwidth = 10,
                                             .steps = 11})
                               .exposed);
    fmt::print("{:<12} {:>10.1f} {:>8.1f}\n", layers / layers_of_a_bucket, all.back()[0],
               all.back()[1]);
  }
  fmt::print(
      "\nMany buckets pay for many messages. They also queue up: a rank moves bytes only when a "
      "gradient is\nready, and each bucket needs two such moments. One bucket cannot begin before "
      "backward ends. The more\na message costs, the larger is the best size.\n\n");
  const auto best = [&](std::size_t link) {
    return std::ranges::min_element(all, {}, [&](const auto& row) { return row[link]; });
  };
  return best(0) > all.begin() && best(0) < best(1) && best(1) + 1 < all.end();
}

void report(const Options& o, const World& world, const Measured& measured) {
  samples::Comparison comparison;
  if (world.size() > 1)
    comparison.claim("on a slow link the best size lies between", print_simulated());
  const std::vector<Row>& rows = measured.rows;
  fmt::print(
      "On this machine, one all-reduce per parameter against buckets: {} x Linear({}, {}), {} "
      "rank{},\n"
      "medians of {} or more rounds of {} steps, in turns\n\n",
      o.layers, o.width, o.width, world.size(), world.size() == 1 ? "" : "s", o.rounds, o.steps);
  print(rows, measured.without_core);
  if (!o.json.empty()) write_json(o.json, rows);
  const bool direct = std::ranges::all_of(rows, &Row::direct);
  for (const Row& row : rows) {
    comparison.claim("cap " + row.cap + ": all replicas are identical",
                     std::set(row.digests.begin(), row.digests.end()).size() == 1);
    comparison.claim("cap " + row.cap + ": the same parameters as with a cap of 1 byte",
                     !direct || row.digests == rows[0].digests);
  }
  if (direct)
    fmt::print("The same parameters, bit for bit, however the gradients are cut.\n");
  else
    fmt::print("Identical replicas; a ring sums in an order that depends on the bucket.\n");
  if (const int fewer = rows.front().collectives - rows.back().collectives; fewer > 0)
    fmt::print(
        "\nWhy: an all-reduce costs time however short it is: {:.1f} us each, by these rows. One "
        "per parameter\npays that for each, larger buckets less often, one bucket once.\n",
        1e3 * (rows.front().milliseconds - rows.back().milliseconds) / fewer);
  (void)comparison.verdict();
}

int run(int argc, char** argv) {
  Options o;
  cli::App app("One all-reduce per parameter against buckets",
               "lockstep sample per_parameter_vs_buckets");
  const auto number = [&](const char* name, std::int64_t& value, const std::string& what) {
    app.add_option(name, value, fmt::format("{} ({})", what, value)).check(cli::whole_number());
  };
  number("--layers", o.layers, "Linear layers");
  number("--width", o.width, "Width of each layer");
  number("--batch", o.batch, "Samples per rank and step");
  number("--steps", o.steps, "Per round");
  number("--rounds", o.rounds, "Rounds");
  app.add_option("--seed", o.seed, "Seed of weights and data (0)")
      .check(cli::whole_number<std::uint64_t>());
  samples::add_options(app, o, "2; in a launcher's world: its size");
  if (!samples::parse(app, o, argc, argv)) return 0;
  check<UsageError>(
      std::min({o.layers, o.width, o.batch, o.steps, o.rounds}) > 0,
      "--layers {} --width {} --batch {} --steps {} --rounds {}: all must be positive", o.layers,
      o.width, o.batch, o.steps, o.rounds);
  return samples::run_ranks(o, 2, argc, argv, [&](const World& world) {
    const Measured measured = measure(o, world);
    if (world.rank() == 0) report(o, world, measured);
  });
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return run(argc, argv); });
}
