// `./lockstep train`: trains an MLP on handwritten digits across ranks, which it starts itself
// (samples/common/ranks.h).

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "lockstep/dist/observe/trace.h"
#include "lockstep/dist/world/survive.h"
#include "lockstep/launch/report.h"
#include "lockstep/tools/cli.h"
#include "train.h"

namespace train_mlp {
namespace {

using namespace lockstep;

void write_json(const Options& options, const Result& result, const World& world) {
  nlohmann::ordered_json per_rank = nlohmann::ordered_json::array();
  for (const Replica& replica : result.replicas) {
    const auto r = static_cast<std::size_t>(replica.rank);
    per_rank.push_back({{"rank", replica.rank},
                        {"pid", replica.pid},
                        {"digest", replica.digest},
                        {"compute_seconds", result.statistics.compute_seconds[r]},
                        {"wait_seconds", result.statistics.wait_seconds[r]}});
  }
  nlohmann::ordered_json json = {
      {"test_accuracy", result.test_accuracy},
      {"train_loss", result.train_loss},
      {"ranks", world.size()},
      {"replicas_identical", result.replicas_identical},
      {"parameter_digest", result.replicas[0].digest},
      {"per_rank", per_rank},
      {"replayed_steps", result.replayed_steps},
      {"buckets", result.buckets},
      {"bucket_layout", result.bucket_layout},
      {"samples_per_second", result.samples_per_second},
      {"bytes_per_step", result.bytes_per_step},
      {"comm", options.comm},
      {"algorithm", result.algorithm},
      {"choices", world.communicator().choices()},
      {"transport", world.transport()},
      {"device", result.device},
      {"precision", options.precision.name},
      {"seed", options.seed},
      {"losses", result.losses},
  };
  if (options.survive) json["members"] = world.members();
  if (!result.kernel_launches.empty()) json["kernel_launches"] = result.kernel_launches;
  cli::write_json(options.json, json);
}

/// Of `train --deterministic machine`, on any number of ranks. README says it, too.
constexpr std::string_view published =
    "d03d62a12760258dedd1508780ca5cd230fa7f18e3bb1712e6210ffbe0fa497b";

void tell_hash(const Options& options, const Result& result) {
  const std::string& hash = result.replicas[0].digest;
  fmt::print("sha256={} deterministic={} lanes={}\n", hash,
             dist::name_of(options.ddp.deterministic), options.lanes);
  if (!as_published(options)) return;
  fmt::print("{}\n", hash == published
                         ? "This is the hash that every machine reaches."
                         : fmt::format("Every machine should reach sha256={}: this one does not.",
                                       published));
  std::fflush(stdout);
  if (hash != published) throw AlreadyReported{1};
}

// In a world whose ranks may be lost: then once more, in the next one.
void run_in(const World& world, const Options& options, Run& run) {
  std::optional<dist::Trace> trace;
  if (!options.trace.empty()) trace.emplace(world, options.trace);
  const Result result = run.train(world);
  if (world.rank() == 0) {
    if (!options.json.empty()) write_json(options, result, world);
    fmt::print("final test_accuracy={:.4f} train_loss={:.4f} ranks={} replicas={}\n",
               result.test_accuracy, result.train_loss, world.size(),
               result.replicas_identical ? "identical" : "different");
    if (options.ddp.deterministic >= dist::Deterministic::world) tell_hash(options, result);
    std::fflush(stdout);
  }
  if (trace) trace->write();  // what is said above does not depend on it
  if (!result.replicas_identical) throw AlreadyReported{1};
}

void run_rank(const Options& options, World& world) {
  Run run(options, world);
  if (!options.survive) return run_in(world, options, run);
  survive(world, [&](World& now) { run_in(now, options, run); }, {.most_ranks = options.lanes});
}

int run(int argc, char** argv) {
  const std::optional<Options> options = parse(argc, argv);
  if (!options) return 0;
  if (samples::writes_results()) check_files(*options);
  return samples::run_ranks(*options, 2, argc, argv,
                            [&](World& world) { run_rank(*options, world); });
}

}  // namespace
}  // namespace train_mlp

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return train_mlp::run(argc, argv); });
}
