// `./lockstep bench reducer`: what buckets are worth for a model, and what the reducer itself
// costs.
//
// Method: training steps of an MLP on random data, as in bench step, with one bucket cap after
// another: round by round in turns, each with a separate model and reducer. Before anything is
// timed, each one's gradients are compared with the mean of what the ranks compute without a
// reducer. A figure is the median of the rounds; its spread goes from their 10th to their 90th
// percentile.
//
// exposed   time of a step in which rank 0's thread communicates (Communicator::exposed)
// ideal     what the trace of a further round would leave exposed, if its buckets, ready at the
//           same times, needed no thread (traces::ideal_exposed)
// alone     the same steps without communication: each rank keeps its own gradients
//
// The reducer's cost per parameter: backward through a sum of many parameters of one element, with
// a reducer in a world of one rank (nothing travels) and without, in turns. The difference, divided
// by the number of parameters, is a ready callback with its share of what begins and ends a
// backward.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "figures.h"
#include "lockstep/dist/rendezvous/environment.h"
#include "lockstep/launch/launch.h"
#include "lockstep/launch/report.h"
#include "lockstep/lockstep.h"
#include "lockstep/tools/cli.h"
#include "lockstep/tools/temporary_folder.h"
#include "lockstep/tools/trace/steps.h"

namespace bench {
namespace {

using namespace lockstep;
using Clock = std::chrono::steady_clock;

constexpr double one_byte = 1.0 / (1 << 20);  // MiB: every gradient has a bucket of its own
constexpr double default_cap = 25;

struct Options {
  std::vector<std::int64_t> layers;
  std::vector<double> caps;  // MiB
  std::int64_t batch = 128;
  std::optional<int> ranks;
  int rounds = 11, parameters = 4000;
  double round_seconds = 0.15;
  std::string comm = "auto", transport = "shm", json;
};

std::vector<double> caps_of(const std::string& text) {
  std::vector<double> caps = {one_byte};
  for (const char *begin = text.data(), *const end = begin + text.size();; ++begin) {
    double cap = 0;
    const auto [stop, error] = std::from_chars(begin, end, cap);
    check<UsageError>(
        error == std::errc() && (stop == end || *stop == ',') && cap > 0 && cap <= 1e6,
        "--caps takes numbers of MiB above 0, as in 0.25,1,25, not '{}'", text);
    caps.push_back(cap);
    begin = stop;
    if (begin == end) break;
  }
  return caps;
}

std::optional<Options> parse(int argc, const char* const* argv) {
  Options o;
  const cli::Check whole = cli::whole_number<int>();
  cli::App app("What buckets are worth, and what the reducer costs", "lockstep bench reducer");
  std::string layers = "784,512,256,10", caps = "0.25,1,5,25";
  app.add_option("--layers", layers, "Widths, input to output (784,512,256,10)");
  app.add_option("--caps", caps,
                 "Bucket caps in MiB, beside one bucket per parameter (0.25,1,5,25)");
  app.add_option("--batch", o.batch, "Samples per rank (128)").check(whole);
  app.add_option("--ranks", o.ranks, "Replicas (2; in a launcher's world: its size)").check(whole);
  app.add_option("--parameters", o.parameters, "Of the model that times the reducer alone (4000)")
      .check(whole);
  app.add_option("--rounds", o.rounds, "Rounds, at least 3 (11)").check(whole);
  app.add_option("--round", o.round_seconds, "Seconds per round (0.15)").check(cli::number());
  app.add_option("--comm", o.comm, fmt::format("{} (auto)", fmt::join(communicator_names(), ", ")))
      .check(cli::one_of(communicator_names()));
  app.add_option("--transport", o.transport, "shm or tcp (shm)").check(cli::one_of({"shm", "tcp"}));
  app.add_option("--json", o.json, "Write a machine-readable summary");
  if (!app.parse(argc, argv)) return {};
  o.layers = cli::widths("--layers", layers);
  o.caps = caps_of(caps);
  check<UsageError>(o.batch > 0, "--batch must be positive, got {}", o.batch);
  check<UsageError>(o.parameters > 0, "--parameters must be positive, got {}", o.parameters);
  check<UsageError>(!o.ranks || (*o.ranks > 0 && *o.ranks <= dist::max_ranks),
                    "--ranks must be in 1..{}, got {}", dist::max_ranks, o.ranks.value_or(0));
  check<UsageError>(o.rounds >= 3, "--rounds must be at least 3, got {}", o.rounds);
  check<UsageError>(o.round_seconds > 0 && o.round_seconds <= 60,
                    "--round must be in (0, 60], got {}", o.round_seconds);
  return o;
}

double percentile(std::vector<double> values, double share) {
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(std::llround(share * double(values.size() - 1)))];
}

/// One way to cut the gradients, or none: its model, and its rounds.
class Contender {
 public:
  Contender(const Options& o, const World& world, std::optional<double> cap_mb)
      : world_(world), cap_(cap_mb) {
    manual_seed(0);
    for (std::size_t i = 0; i + 1 < o.layers.size(); ++i) {
      if (i > 0) model_.append(nn::ReLU());
      model_.append(nn::Linear(o.layers[i], o.layers[i + 1]));
    }
    optimizer_ = std::make_unique<optim::SGD>(model_.parameters(),
                                              optim::SGD::Options{.lr = 1e-3, .momentum = 0.9});
    if (cap_)
      ddp_ = std::make_unique<dist::DistributedDataParallel>(
          model_.parameters(), model_.buffers(), world,
          dist::DdpOptions{.bucket_cap_mb = *cap_,
                           .first_bucket_mb = std::min(*cap_, 1.0),
                           .last_bucket_mb = std::min(*cap_, 1.0)});
    Generator generator(1000 + static_cast<std::uint64_t>(world.rank()));
    x_ = Tensor::empty({o.batch, o.layers.front()});
    y_ = Tensor::empty({o.batch}, DType::i64);
    generator.normal(x_, 0, 1);
    generator.randint(0, o.layers.back(), y_);
  }

  void backward() {
    Tape tape;
    tape.backward(nn::cross_entropy(model_(x_), y_));
  }
  void step() {
    backward();
    if (cap_)
      optimizer_->step();
    else  // the same step without communication
      optimizer_->step(optim::local);
    optimizer_->zero_grad();
  }
  void zero_grad() { optimizer_->zero_grad(); }
  /// All gradients, one after another.
  std::vector<float> gradients() {
    std::vector<float> all;
    for (const Parameter& parameter : model_.parameters()) {
      const auto values = parameter.gradient().to_vector<float>();
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

  void round(std::int64_t steps) {
    world_.communicator().barrier("round").wait();
    const dist::Seconds exposed = world_.communicator().exposed();
    const auto start = Clock::now();
    for (std::int64_t i = 0; i < steps; ++i) step();
    const std::chrono::duration<double, std::micro> took = Clock::now() - start;
    const auto n = static_cast<double>(steps);
    times.rounds.push_back(took.count() / n);
    exposed_us.push_back(1e6 * (world_.communicator().exposed() - exposed).count() / n);
  }

  /// Collective: further steps, traced into an empty folder. The median of what the ideal leaves.
  double ideal(const std::string& folder) {
    {
      dist::Trace trace(world_, folder);
      for (int i = 0; i < 30; ++i) step();
      trace.write();
    }
    world_.communicator().barrier("traced").wait();
    if (world_.rank() != 0) return 0;
    const auto steps = traces::steps_of(traces::read_traces(folder));
    const auto cost = traces::bucket_costs(steps);
    std::vector<double> all;
    for (const traces::Step& step : steps) all.push_back(traces::ideal_exposed(step, cost));
    return percentile(all, 0.5);
  }

  std::string name() const {
    if (!cap_) return "alone";
    if (*cap_ == one_byte) return "per parameter";
    return fmt::format("{:g} MiB{}", *cap_, *cap_ == default_cap ? ", default" : "");
  }
  std::size_t buckets() const { return ddp_ ? ddp_->buckets().all().size() : 0; }
  std::size_t largest() const { return ddp_ ? ddp_->buckets().largest() : 0; }

  Figures times{};
  std::vector<double> exposed_us{};
  double ideal_us = 0;

 private:
  const World& world_;
  std::optional<double> cap_;
  nn::Sequential model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<dist::DistributedDataParallel> ddp_;
  Tensor x_, y_;
};

/// Every contender must have the mean of what the ranks compute alone, before it is timed.
void verify(std::vector<std::unique_ptr<Contender>>& contenders, const World& world) {
  contenders.back()->backward();  // alone
  const std::vector<float> own = contenders.back()->gradients();
  contenders.back()->zero_grad();
  const Tensor mean = Tensor::empty({std::ssize(own)}, DType::f64);
  std::ranges::transform(own, mean.data<double>(),
                         [&](float g) { return double{g} / world.size(); });
  world.communicator().all_reduce(mean, "mean gradient").wait();
  const auto expected = mean.span<double>();
  for (auto& contender : contenders) {
    if (contender == contenders.back()) continue;
    contender->backward();
    const std::vector<float> found = contender->gradients();
    for (std::size_t i = 0; i < found.size(); ++i)
      check<Error>(std::abs(found[i] - expected[i]) <= 1e-5 * std::max(1e-2, std::abs(expected[i])),
                   "[bench] {}: gradient {} is {}, the mean over the ranks {}", contender->name(),
                   i, found[i], expected[i]);
    contender->zero_grad();
  }
}

/// Nanoseconds per parameter that a reducer adds to a backward, round by round.
std::vector<double> reducer_cost(int parameters, int rounds) {
  std::vector<double> cost;
  run_threads(1, {}, [&](World& world) {
    std::vector<Parameter> all[2];  // without a reducer, with one
    for (auto& some : all)
      for (int k = 0; k < parameters; ++k)
        some.emplace_back(Tensor::full({1}, 1), fmt::format("p{}", k));
    dist::Reducer reducer(all[1], world.communicator());
    const auto seconds = [](const std::vector<Parameter>& some) {
      Tape tape;
      Tensor total = some[0] * 1.0;
      for (const Parameter& parameter : some) total = total + Tensor(parameter);
      const auto start = Clock::now();
      tape.backward(total);
      const std::chrono::duration<double> took = Clock::now() - start;
      for (const Parameter& parameter : some) parameter.zero_grad();
      return took.count();
    };
    for (int round = -2; round < rounds; ++round) {  // two to warm up
      const double without = seconds(all[0]), with = seconds(all[1]);
      if (round >= 0) cost.push_back(1e9 * (with - without) / parameters);
    }
  });
  return cost;
}

std::string conclusion(const std::vector<std::unique_ptr<Contender>>& contenders) {
  const Contender* best = nullptr;
  const Contender& per_parameter = *contenders.front();
  double spread = 0;
  for (const auto& contender : contenders) {
    if (contender == contenders.back()) continue;  // alone
    const Figures& f = contender->times;
    spread =
        std::max(spread, (percentile(f.rounds, 0.9) - percentile(f.rounds, 0.1)) / f.median() / 2);
    if (!best || f.median() < best->times.median()) best = contender.get();
  }
  const double gain = 1 - best->times.median() / per_parameter.times.median();
  if (gain <= spread)
    return fmt::format(
        "No difference can be told: {:.0f} % between the first row and the fastest, "
        "rounds of one row differ by {:.0f} %.",
        100 * gain, 100 * spread);
  return fmt::format(
      "Fastest: {}, {:.0f} % less time than one bucket per parameter (rounds of one "
      "row differ by {:.0f} %).",
      best->name(), 100 * gain, 100 * spread);
}

void report(const Options& o, const World& world, std::int64_t steps,
            const std::vector<std::unique_ptr<Contender>>& contenders,
            const std::vector<double>& cost) {
  fmt::print("{} | batch {} per rank, {} rank{} over {} | {} rounds of {} steps, in turns\n\n",
             fmt::join(o.layers, "-"), o.batch, world.size(), world.size() == 1 ? "" : "s",
             world.transport(), o.rounds, steps);
  fmt::print("{:<16} {:>8} {:>12} {:>12} {:>19} {:>10} {:>8}\n", "bucket cap", "buckets",
             "largest KiB", "us per step", "p10-p90", "exposed", "ideal");
  nlohmann::ordered_json rows;
  for (const auto& contender : contenders) {
    const Figures& f = contender->times;
    const double p10 = percentile(f.rounds, 0.1), p90 = percentile(f.rounds, 0.9);
    const bool alone = contender == contenders.back();
    const double exposed = percentile(contender->exposed_us, 0.5);
    fmt::print("{:<16} {:>8} {:>12} {:>12.1f} {:>19} {:>10} {:>8}\n", contender->name(),
               alone ? "-" : std::to_string(contender->buckets()),
               alone ? "-" : fmt::format("{:.1f}", double(contender->largest()) / 1024), f.median(),
               fmt::format("{:.1f}-{:.1f}", p10, p90), alone ? "-" : fmt::format("{:.1f}", exposed),
               alone ? "-" : fmt::format("{:.1f}", contender->ideal_us));
    rows.push_back({{"name", contender->name()},
                    {"buckets", contender->buckets()},
                    {"largest_bytes", contender->largest()},
                    {"median_us", f.median()},
                    {"p10_us", p10},
                    {"p90_us", p90},
                    {"exposed_us", exposed},
                    {"ideal_us", contender->ideal_us}});
  }
  fmt::print(
      "\n{}\nA reducer adds {:.0f} ns per parameter to backward ({:.0f}-{:.0f}; {} parameters "
      "of one element, one rank).\n",
      conclusion(contenders), percentile(cost, 0.5), percentile(cost, 0.1), percentile(cost, 0.9),
      o.parameters);
  if (!o.json.empty())
    cli::write_json(o.json, {{"layers", o.layers},
                             {"batch", o.batch},
                             {"ranks", world.size()},
                             {"comm", o.comm},
                             {"transport", world.transport()},
                             {"steps", steps},
                             {"rows", rows},
                             {"reducer_ns_per_parameter", percentile(cost, 0.5)}});
}

int run_rank(const Options& o, const World& world) {
  std::vector<std::unique_ptr<Contender>> contenders;
  for (const double cap : o.caps) contenders.push_back(std::make_unique<Contender>(o, world, cap));
  contenders.push_back(std::make_unique<Contender>(o, world, std::nullopt));
  verify(contenders, world);

  for (auto& contender : contenders) contender->round(5);
  const Tensor steps = Tensor::empty({1}, DType::i64);
  steps.fill(std::max(3.0, std::round(o.round_seconds * 1e6 / contenders[0]->times.rounds[0])));
  world.communicator().broadcast(steps, 0, "steps per round").wait();
  for (auto& contender : contenders) {
    contender->times.rounds.clear();
    contender->exposed_us.clear();
  }
  for (int round = 0; round < o.rounds; ++round)
    for (auto& contender : contenders) contender->round(static_cast<std::int64_t>(steps.item()));
  std::optional<cli::TemporaryFolder> temporary;
  if (world.rank() == 0) temporary.emplace("lockstep-bench");
  const std::string folder =
      dist::gather_text(world.communicator(), temporary ? temporary->path() : "")[0];
  for (auto& contender : contenders)
    if (contender != contenders.back()) contender->ideal_us = contender->ideal(folder);
  world.communicator().barrier("measured").wait();
  if (world.rank() == 0) {
    report(o, world, static_cast<std::int64_t>(steps.item()), contenders,
           reducer_cost(o.parameters, o.rounds));
  }
  world.communicator().barrier("end").wait();
  return 0;
}

int run(int argc, char** argv) {
  const std::optional<Options> options = parse(argc, argv);
  if (!options) return 0;
  const auto environment = dist::read_environment();
  check<UsageError>(!environment || !options->ranks || *options->ranks == environment->size,
                    "--ranks {} in a world of {}", options->ranks.value_or(0),
                    environment ? environment->size : 0);
  if (!environment || environment->rank == 0) cli::check_writable("--json", options->json);
  const int ranks = options->ranks.value_or(2);
  if (!environment && ranks > 1) return launch::run_this_program({.ranks = ranks}, argc, argv);
  return run_rank(*options, World::join({.comm = options->comm, .transport = options->transport}));
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return bench::run(argc, argv); });
}
