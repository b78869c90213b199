// `./lockstep sample overlap`: where communication hides behind backward, drawn from a trace of
// what happened. Rank 0 prints one step twice: first as it is, then with all communication after
// backward. Both train the same model.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <optional>

#include "lockstep/launch/report.h"
#include "lockstep/lockstep.h"
#include "lockstep/samples/common/figures.h"
#include "lockstep/samples/common/ranks.h"
#include "lockstep/tools/cli.h"
#include "lockstep/tools/temporary_folder.h"
#include "lockstep/tools/trace/steps.h"
#include "lockstep/tools/trace/timeline.h"

namespace {

using namespace lockstep;

constexpr int steps = 40;

struct Options : samples::RunOptions {
  std::string trace;
  int width = 100;
};

std::optional<Options> parse(int argc, const char* const* argv) {
  Options o;
  CLI::App app("Communication behind backward, drawn from a trace", "lockstep sample overlap");
  samples::add_options(app, o, "2");
  app.add_option("--trace", o.trace,
                 "Keep the traces, in two folders in this one (without: they are deleted)");
  app.add_option("--width", o.width, "Columns of the drawing (100)")
      ->check(cli::whole_number<int>());
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

double median_step(const std::vector<traces::Step>& all) {
  std::vector<double> times;
  for (const traces::Step& step : all) times.push_back(step.ranks[0].end - step.ranks[0].begin);
  return samples::median(std::move(times));
}

/// The share of the time in flight that the thread computed, on all ranks.
double hidden_share(const std::vector<traces::RankTrace>& all) {
  double hidden = 0, in_flight = 0;
  for (const traces::RankFigures& figures : traces::figures_of(all, traces::steps_of(all))) {
    hidden += figures.hidden;
    in_flight += figures.in_flight;
  }
  return in_flight > 0 ? hidden / in_flight : 0;
}

void print(const char* title, const std::vector<traces::RankTrace>& all, int width) {
  const auto steps = traces::steps_of(all);
  const traces::RankFigures f = traces::figures_of(all, steps)[0];
  const auto count = static_cast<double>(steps.size());
  fmt::print("{}\n{}", title, traces::timeline(all, 0, width));
  fmt::print(
      "rank 0, per step: {:.0f} us, exposed {:.0f} us, in flight {:.0f} us, of it hidden "
      "behind backward {:.0f} %\n\n",
      median_step(steps), f.exposed / count, f.in_flight / count,
      f.in_flight > 0 ? 100 * f.hidden / f.in_flight : 0);
}

constexpr const char* explanation =
    R"(What you see: a bucket is launched when its last gradient is ready (r); backward goes on.
Why: gradients of late layers are ready first, and nobody needs them before the optimizer's step.
On CPUs no second thread moves the bytes: backward's own thread does, at each m, whenever a gradient
becomes ready. So m is work that overlap cannot hide; what it hides is waiting (w) for the others.
Where: Reducer::gradient_ready and launch_ready in dist/ddp/reducer.cpp; Work::progress.
)";

void run_rank(const Options& options, const World& world) {
  const Folder folder(options.trace, world);
  const std::vector<Parameter> with = train(world, true, folder / "on");
  const std::vector<Parameter> without = train(world, false, folder / "off");
  const double difference = largest_difference(with, without);
  world.communicator().barrier("traces are written").wait();
  if (world.rank() != 0) return;
  const auto on = traces::read_traces(folder / "on"), off = traces::read_traces(folder / "off");
  print("Overlap", on, options.width);
  print("Without: everything travels after backward", off, options.width);
  std::vector<double> ideal;
  const std::vector<traces::Step> all = traces::steps_of(on);
  const auto cost = traces::bucket_costs(all);
  for (const traces::Step& step : all) ideal.push_back(traces::ideal_exposed(step, cost));
  fmt::print(
      "The ideal, with the same gradients ready at the same times and bytes that move by "
      "themselves:\n{:.0f} us exposed.\n\n{}",
      samples::median(std::move(ideal)), explanation);

  if (world.size() > 1)
    fmt::print(
        "\nA step: {:.0f} us with overlap, {:.0f} us without. (On a busy machine it may be the "
        "other way\nround: then ranks wait for the processor, not for bytes.)\n",
        median_step(all), median_step(traces::steps_of(off)));
  samples::Comparison comparison;
  comparison.claim("overlap changes no bit", difference == 0);
  if (world.size() > 1) {
    comparison.claim("buckets travel while backward runs", hidden_share(on) > 0);
    for (const traces::Step& step : traces::steps_of(off))
      for (const traces::BucketTimes& bucket : step.ranks[0].buckets)
        comparison.claim(
            "without overlap none does",
            bucket.launched >= step.ranks[0].backward_ends - step.ranks[0].backward_begins);
  }
  if (!options.json.empty())
    cli::write_json(options.json, {{"difference", difference},
                                   {"hidden", hidden_share(on)},
                                   {"hidden_without", hidden_share(off)},
                                   {"buckets", all[0].ranks[0].buckets.size()}});
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
