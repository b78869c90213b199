// `./lockstep sample overlap`: where communication hides behind backward, drawn from a trace of
// what happened. The same model is trained in turns: as it is, and with all communication after
// backward. Rank 0 prints what each way costs, and one step of each.

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "lockstep/launch/report.h"
#include "lockstep/lockstep.h"
#include "lockstep/samples/common/figures.h"
#include "lockstep/samples/common/ranks.h"
#include "lockstep/samples/common/simulated.h"
#include "lockstep/tools/cli.h"
#include "lockstep/tools/temporary_folder.h"
#include "lockstep/tools/trace/steps.h"
#include "lockstep/tools/trace/timeline.h"

namespace {

using namespace lockstep;

constexpr int turns = 5, steps = 40;

struct Options : samples::RunOptions {
  std::string trace;
  int width = 100;
};

std::optional<Options> parse(int argc, const char* const* argv) {
  Options o;
  cli::App app("Communication behind backward, drawn from a trace", "lockstep sample overlap");
  samples::add_options(app, o, "2");
  app.add_option("--trace", o.trace,
                 "Keep the traces, in two folders in this one (without: they are deleted)");
  app.add_option("--width", o.width, "Columns of the drawing (100)")
      .check(cli::whole_number<int>());
  if (!samples::parse(app, o, argc, argv)) return {};
  check<UsageError>(o.width >= 60 && o.width <= 400, "--width must be in 60..400, got {}", o.width);
  return o;
}

/// Where the traces go: a folder that the user named, or one that goes away with this.
class Folder {
 public:
  Folder(const std::string& named, const World& world) : path_(named) {
    if (!named.empty()) return;
    if (world.rank() == 0) temporary_.emplace("lockstep-overlap");
    path_ = dist::gather_text(world.communicator(), temporary_ ? temporary_->path() : "")[0];
  }
  std::string operator/(const char* name) const { return path_ + "/" + name; }

 private:
  std::optional<cli::TemporaryFolder> temporary_;
  std::string path_;
};

/// Trains for some steps, traced, and returns the trained parameters.
std::vector<Parameter> train(const World& world, bool overlap, const std::string& folder) {
  manual_seed(0);
  nn::Sequential model{nn::Linear(256, 512), nn::ReLU(), nn::Linear(512, 512), nn::ReLU(),
                       nn::Linear(512, 512), nn::ReLU(), nn::Linear(512, 10)};
  optim::SGD optimizer(model.parameters(), {.lr = 0.01, .momentum = 0.9});
  // Caps of about a layer each: the default of 25 MB would be one bucket, and nothing to see.
  dist::DistributedDataParallel ddp(
      model.parameters(), model.buffers(), world,
      {.bucket_cap_mb = 1, .first_bucket_mb = 1, .last_bucket_mb = 0.25});
  Generator generator(static_cast<std::uint64_t>(world.rank()));
  const Tensor x = Tensor::empty({64, 256}), y = Tensor::empty({64}, DType::i64);
  generator.normal(x, 0, 1);
  generator.randint(0, 10, y);

  dist::Trace trace(world, folder);
  for (int i = 0; i < steps; ++i) {
    Tape tape;
    const Tensor loss = nn::cross_entropy(model(x), y);
    const Weight one(1);  // of a total that is known at the end: both ways divide the sum there
    if (overlap) {
      tape.backward(loss, one);
    } else {  // accumulate here, and send everything afterwards
      tape.backward(loss, one, {.sync = false});
      ddp.synchronize();
    }
    optimizer.step();
    optimizer.zero_grad();
  }
  trace.write();
  return model.parameters();
}

double largest_difference(const std::vector<Parameter>& a, const std::vector<Parameter>& b) {
  double largest = 0;
  for (std::size_t k = 0; k < a.size(); ++k) {
    const auto x = a[k].value().to_vector<float>(), y = b[k].value().to_vector<float>();
    for (std::size_t i = 0; i < x.size(); ++i)
      largest = samples::larger(largest, std::abs(double{x[i]} - double{y[i]}));
  }
  return largest;
}

/// What rank 0 measures of a way of training, in us per step: one number of each turn.
struct Way {
  std::vector<traces::RankTrace> first;  ///< the first turn, of all ranks
  std::vector<double> step, exposed, in_flight, hidden;

  void add(std::vector<traces::RankTrace> read) {
    const std::vector<traces::Step> all = traces::steps_of(read);
    const traces::RankFigures f = traces::figures_of(read, all)[0];
    const auto count = static_cast<double>(all.size());
    std::vector<double> times;
    for (const traces::Step& one : all) times.push_back(one.ranks[0].end - one.ranks[0].begin);
    step.push_back(samples::median(std::move(times)));
    exposed.push_back(f.exposed / count);
    in_flight.push_back(f.in_flight / count);
    hidden.push_back(f.hidden / count);
    if (first.empty()) first = std::move(read);
  }

  void print(const char* name) const {
    fmt::print("{:<8} {:>6.0f} us {:>6.0f} us\n", name, samples::median(step),
               samples::median(exposed));
  }
};

/// The share of the time in flight in which the threads computed.
double hidden_share(const Way& way) {
  const double flies = samples::median(way.in_flight);
  return flies > 0 ? samples::median(way.hidden) / flies : 0;
}

void print_ideal(const std::vector<traces::RankTrace>& all) {
  std::vector<double> ideal;
  const std::vector<traces::Step> read = traces::steps_of(all);
  const auto cost = traces::bucket_costs(read);
  for (const traces::Step& step : read) ideal.push_back(traces::ideal_exposed(step, cost));
  fmt::print(
      "The ideal, with the same gradients ready at the same times and bytes that move by "
      "themselves:\n{:.0f} us exposed.\n\n",
      samples::median(std::move(ideal)));
}

/// What the turns say, and no more: they agree, or they do not.
std::string conclusion(const Way& with, const Way& without, int ranks) {
  const auto [least, most] = std::ranges::minmax(with.exposed);
  const auto [least_without, most_without] = std::ranges::minmax(without.exposed);
  const double on = samples::median(with.exposed), off = samples::median(without.exposed);
  std::string text = fmt::format(
      "Exposed: {:.0f} us ({:.0f} to {:.0f} in {} turns) with overlap, {:.0f} us ({:.0f} to "
      "{:.0f}) without.\n",
      on, least, most, turns, off, least_without, most_without);
  if (most < least_without)
    text += "Overlap took time out of the step.";
  else if (least > most_without)
    text +=
        "Overlap exposed more: here so many buckets cost more than a wait at the end. Between "
        "ranks "
        "of one\nmachine there is little to hide.";
  else if (static_cast<unsigned>(ranks) > std::thread::hardware_concurrency())
    text += "These turns tell no difference: ranks that share a core wait for it, not for bytes.";
  else
    text +=
        "These turns tell no difference: they are noisy, or there is nothing to wait for: messages "
        "take little\ntime here, and the ranks are equally fast.";
  return text;
}

constexpr const char* explanation =
    R"(What you see: a bucket is launched when its last gradient is ready (r), after all buckets
before it: the order is the same on all ranks. Backward goes on. All rows show the same stretch of
time, in which a rank may still be in the step before, or already in the next. Without overlap the
reducer hears of all gradients at the end: they were ready before.
Why: gradients of late layers are ready first, and nobody needs them before the optimizer's step.
On CPUs no second thread moves the bytes: backward's own thread does, at each m, whenever a gradient
becomes ready. So m is work that overlap cannot hide. What it hides is waiting (w): for a message
on its way, for a rank that is late, or that has no core.
In flight (=) is until the thread sees that the sum is there: it may have been for some time.
Where: Reducer::gradient_ready and launch_ready in dist/ddp/reducer.cpp; Work::progress.
)";

void print(const Options& options, const Way& with, const Way& without) {
  fmt::print("Rank 0      step    exposed\n");
  with.print("overlap");
  without.print("without");
  fmt::print("\nOverlap\n{}\n", traces::timeline(with.first, 0, options.width));
  fmt::print("Without: everything travels after backward\n{}\n",
             traces::timeline(without.first, 0, options.width));
  print_ideal(with.first);
  fmt::print("{}", explanation);
}

/// What overlap gains where bytes take time. Returns whether what is said of the table holds.
bool print_simulated() {
  fmt::print(
      "On slow links, in a simulated world: the real reducer and ring, but virtual time, so that "
      "everybody\nreads these figures. 2 ranks, equally fast; 5 layers of 4 KB; a step computes "
      "for "
      "31 ms, of them 20\nbackward. Besides the time of its bytes, a message takes a random "
      "time.\n\n"
      "ms exposed             a bucket for each layer     one bucket\n"
      "link                  with overlap   without   for all layers\n");
  struct Link {
    double bandwidth, message;
  };
  bool holds = true;
  for (const Link& link : {Link{1, 0.2}, Link{2, 0.2}, Link{4, 0.2}, Link{2, 2}}) {
    samples::SimulatedTraining training{.layers = 5,
                                        .slower = 1,
                                        .message = link.message,
                                        .bandwidth = link.bandwidth,
                                        .steps = 11};
    const double with = samples::cost_of(training).exposed;
    training.overlap = false;
    const double without = samples::cost_of(training).exposed;
    training.layers_of_a_bucket = training.layers;
    const double one = samples::cost_of(training).exposed;
    holds = holds && with < without && (link.message < 1) == (with < one);
    fmt::print("{} MB/s, up to {:<3} ms {:>13.1f} {:>9.1f} {:>16.1f}\n", link.bandwidth,
               link.message, with, without, one);
  }
  fmt::print(
      "\nOverlap hides about a third of what one bucket leaves exposed. But where messages take "
      "the "
      "time, not\nbytes, as in the last row, fewer buckets are better: ./lockstep sample "
      "per_parameter_vs_buckets.\n\nOn this machine, where both take little: 256-512-512-512-10, "
      "buckets of about a layer.\n\n");
  return holds;
}

void run_rank(const Options& options, const World& world) {
  const Folder folder(options.trace, world);
  Way with, without;
  double difference = 0;
  for (int turn = 0; turn < turns; ++turn) {
    const auto a = train(world, true, folder / "on"), b = train(world, false, folder / "off");
    difference = samples::larger(difference, largest_difference(a, b));
    world.communicator().barrier("traces are written").wait();
    if (world.rank() == 0) {
      with.add(traces::read_traces(folder / "on"));
      without.add(traces::read_traces(folder / "off"));
    }
    world.communicator().barrier("traces are read").wait();
  }
  if (world.rank() != 0) return;
  samples::Comparison comparison;
  if (world.size() > 1) comparison.claim("where bytes take time overlap wins", print_simulated());
  print(options, with, without);
  comparison.claim("overlap changes no bit", difference == 0);
  if (world.size() > 1) {
    fmt::print("\n{}\n", conclusion(with, without, world.size()));
    comparison.claim("buckets travel while backward runs", hidden_share(with) > 0);
    for (const traces::Step& step : traces::steps_of(without.first))
      for (const traces::BucketTimes& bucket : step.ranks[0].buckets)
        comparison.claim(
            "without overlap none does",
            bucket.launched >= step.ranks[0].backward_ends - step.ranks[0].backward_begins);
  }
  if (!options.json.empty()) {
    const std::vector<traces::Step> all = traces::steps_of(with.first);
    cli::write_json(options.json, {{"difference", difference},
                                   {"hidden", hidden_share(with)},
                                   {"hidden_without", hidden_share(without)},
                                   {"buckets", all[0].ranks[0].buckets.size()}});
  }
  if (!options.trace.empty())
    fmt::print("Traces: {}, {} (./lockstep trace, or ui.perfetto.dev)\n", folder / "on",
               folder / "off");
  (void)comparison.verdict();
}

int run(int argc, char** argv) {
  const std::optional<Options> options = parse(argc, argv);
  if (!options) return 0;
  return samples::run_ranks(*options, 2, argc, argv,
                            [&](const World& world) { run_rank(*options, world); });
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return run(argc, argv); });
}
