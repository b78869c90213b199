#include "lockstep/samples/common/ranks.h"

#include <fmt/ranges.h>

#include "lockstep/dist/rendezvous/environment.h"
#include "lockstep/launch/launch.h"
#include "lockstep/tools/cli.h"

namespace lockstep::samples {

void add_options(cli::App& app, RunOptions& options, const std::string& ranks) {
  app.add_option("--ranks", options.ranks, "Replicas (" + ranks + ")")
      .check(cli::whole_number<int>());
  cli::add_options(app, options.device);
  app.add_option("--comm", options.comm,
                 fmt::format("{} (auto)", fmt::join(communicator_names(), ", ")))
      .check(cli::one_of(communicator_names()));
  app.add_option("--transport", options.transport,
                 "shm, tcp or threads (shm; between machines tcp); between GPUs also ipc")
      .check(cli::one_of({"shm", "tcp", "threads", "ipc"}));
  app.add_option("--timeout", options.timeout,
                 "Seconds without progress until a collective fails (60)")
      .check(cli::number());
  app.add_option("--grace", options.grace,
                 "Seconds that ranks have to end after SIGTERM before SIGKILL (2)")
      .check(cli::number())
      .check(cli::in_range(0.0, launch::longest_grace.count()));
  app.add_option("--json", options.json, "Write a machine-readable summary");
}

bool parse(cli::App& app, const RunOptions& options, int argc, const char* const* argv) {
  if (!app.parse(argc, argv)) return false;
  check<UsageError>(!options.ranks || (*options.ranks > 0 && *options.ranks <= dist::max_ranks),
                    "--ranks must be in 1..{}, got {}", dist::max_ranks, options.ranks.value_or(0));
  check<UsageError>(options.timeout > 0, "--timeout must be positive, got {}", options.timeout);
  check<UsageError>(options.transport != "threads" || app.count("--grace") == 0,
                    "--grace is for ranks that are processes, and --transport is threads");
  (void)options.device.choose(0);  // better now than in every rank
  return true;
}

void set_ranks(RunOptions& options, int ranks, std::string_view source) {
  check<UsageError>(ranks > 0 && ranks <= dist::max_ranks, "{} asks for {} ranks, not 1..{}",
                    source, ranks, dist::max_ranks);
  check<UsageError>(!options.ranks || *options.ranks == ranks, "--ranks {}, but {} is for {}",
                    options.ranks.value_or(0), source, ranks);
  const auto environment = dist::read_environment();
  if (environment)
    check<UsageError>(environment->size == ranks,
                      "{} is for {} ranks, in a world of {} that {} started", source, ranks,
                      environment->size, environment->launcher);
  options.ranks = ranks;
}

bool writes_results() {
  const auto environment = dist::read_environment();
  return !environment || environment->rank == 0;
}

static void run_process(const JoinOptions& join, const std::function<void(World&)>& body) {
  World world = World::join(join);
  body(world);
}

int run_ranks(const RunOptions& options, int otherwise, int argc, const char* const* argv,
              const std::function<void(World&)>& body) {
  const auto environment = dist::read_environment();
  if (environment) {
    // One that joins a job later has a number of its own.
    const bool joins = environment->survive_descriptor >= 0;
    check<UsageError>(joins || !options.ranks || *options.ranks == environment->size,
                      "--ranks {} in a world of {} that {} started", options.ranks.value_or(0),
                      environment->size, environment->launcher);
    check<UsageError>(options.transport != "threads",
                      "--transport threads in a world of processes that {} started",
                      environment->launcher);
  }
  if (writes_results()) cli::check_writable("--json", options.json);
  const int ranks = environment ? environment->size : options.ranks.value_or(otherwise);
  const JoinOptions join{.comm = options.comm,
                         .transport = options.transport.value_or(""),
                         .timeout = dist::Seconds(options.timeout)};
  if (options.transport == "threads")
    run_threads(ranks, join, body);
  else if (!environment && ranks > 1)
    return launch::run_this_program({.ranks = ranks,
                                     .grace = dist::Seconds(options.grace),
                                     .survive = options.survive,
                                     .respawn = options.respawn},
                                    argc, argv);
  else
    run_process(join, body);
  return 0;
}

}  // namespace lockstep::samples
