// `./lockstep scaling`: how a training step grows with the ranks, with a fixed batch per rank and
// with a fixed batch of all ranks. Each figure is a run of `bench step` of its own.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "lockstep/dist/rendezvous/environment.h"
#include "lockstep/dist/world/world.h"
#include "lockstep/launch/report.h"
#include "lockstep/tools/cli.h"
#include "lockstep/tools/temporary_folder.h"

namespace {

using namespace lockstep;

struct Options {
  std::string layers = "784,512,256,10", optimizer = "sgd", comm = "auto", transport = "shm", json;
  int ranks = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  int batch = 32, rounds = 5;
  double round = 0.3;
};

std::optional<Options> parse(int argc, const char* const* argv) {
  Options o;
  const cli::Check whole = cli::whole_number<int>();
  cli::App app("How a training step grows with the number of ranks", "lockstep scaling");
  app.add_option("--layers", o.layers, "Widths, input to output (784,512,256,10)");
  app.add_option("--ranks", o.ranks, "From 1 to so many ranks (the number of cores)").check(whole);
  app.add_option("--batch", o.batch, "Samples per rank and step (32)").check(whole);
  app.add_option("--optimizer", o.optimizer, "sgd or adam (sgd)")
      .check(cli::one_of({"sgd", "adam"}));
  app.add_option("--comm", o.comm, fmt::format("{} (auto)", fmt::join(communicator_names(), ", ")))
      .check(cli::one_of(communicator_names()));
  app.add_option("--transport", o.transport, "shm or tcp (shm)").check(cli::one_of({"shm", "tcp"}));
  app.add_option("--rounds", o.rounds, "Rounds per figure, at least 5 (5)").check(whole);
  app.add_option("--round", o.round, "Seconds per round (0.3)").check(cli::number());
  app.add_option("--json", o.json, "Also write the figures to this file");
  if (!app.parse(argc, argv)) return {};
  (void)cli::widths("--layers", o.layers);
  check<UsageError>(o.ranks > 0 && o.ranks <= dist::max_ranks, "--ranks must be in 1..{}, got {}",
                    dist::max_ranks, o.ranks);
  check<UsageError>(o.batch > 0, "--batch must be positive, got {}", o.batch);
  check<UsageError>(o.rounds >= 5, "--rounds must be at least 5, got {}", o.rounds);
  check<UsageError>(o.round > 0 && o.round <= 60, "--round must be in (0, 60], got {}", o.round);
  cli::check_writable("--json", o.json);
  return o;
}

/// What one rank needs for a step, in microseconds.
struct Figure {
  int ranks = 1, batch = 0;
  double step = 0, exposed = 0;
  double computing() const { return step - exposed; }
  double samples_per_second() const { return 1e6 * ranks * batch / step; }
};

Figure measure(const Options& o, const std::string& program, int ranks, int batch) {
  const cli::TemporaryFolder folder("lockstep-scaling");
  const std::string figures = folder.path() + "/json";
  const std::pair<const char*, std::string> options[] = {{"--layers", o.layers},
                                                         {"--ranks", fmt::to_string(ranks)},
                                                         {"--batch", fmt::to_string(batch)},
                                                         {"--optimizer", o.optimizer},
                                                         {"--comm", o.comm},
                                                         {"--transport", o.transport},
                                                         {"--rounds", fmt::to_string(o.rounds)},
                                                         {"--round", fmt::to_string(o.round)},
                                                         {"--json", figures}};
  std::vector<std::string> command = {program};
  for (const auto& [name, value] : options) command.insert(command.end(), {name, value});
  const pid_t child = ::fork();
  check<Error>(child >= 0, "[scaling] cannot start '{}'", program);
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);  // who ends this program alone ends the measurement, too
    std::vector<char*> words;
    for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    if (std::freopen("/dev/null", "w", stdout)) ::execv(words[0], words.data());
    ::_exit(127);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (status != 0) throw AlreadyReported{1};  // it has said why
  const auto json = nlohmann::json::parse(std::ifstream(figures), nullptr, false);
  check<Error>(json.is_object(), "[scaling] '{}' has written no figures", program);
  return {.ranks = ranks,
          .batch = batch,
          .step = json.at("median_us"),
          .exposed = json.at("exposed").at("median_us")};
}

/// What keeps it from the ideal: the larger one of what was added to computing and what is exposed.
/// `share` is of the computing of one rank, which each rank has to do.
std::string limit(const Figure& one, const Figure& figure, double share) {
  const double ideal = one.computing() * share;
  const double slower = figure.computing() - ideal;
  if (figure.ranks == 1) return "";
  if (figure.step < 1.1 * (one.step * share)) return "nothing";
  return slower > figure.exposed ? "ranks compute slower together" : "communication";
}

nlohmann::ordered_json table(const std::vector<Figure>& figures, bool fixed_per_rank) {
  fmt::print("\n{}\n", fixed_per_rank ? "Fixed batch per rank" : "Fixed batch of all ranks");
  fmt::print("{:>5} {:>6} {:>9} {:>10} {:>8} {:>11} {:>10}  {}\n", "ranks", "batch", "us/step",
             "computing", "exposed", "samples/s", "efficiency", "limited by");
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  const Figure& one = figures[0];
  for (const Figure& f : figures) {
    const double efficiency =
        f.samples_per_second() / (one.samples_per_second() * static_cast<double>(f.ranks));
    const double share = static_cast<double>(f.batch) / one.batch;
    const std::string limited = limit(one, f, share);
    fmt::print("{:>5} {:>6} {:>9.1f} {:>10.1f} {:>8.1f} {:>11.0f} {:>9.0f}%  {}\n", f.ranks,
               f.batch, f.step, f.computing(), f.exposed, f.samples_per_second(), 100 * efficiency,
               limited);
    json.push_back({{"ranks", f.ranks},
                    {"batch", f.batch},
                    {"step_us", f.step},
                    {"exposed_us", f.exposed},
                    {"samples_per_second", f.samples_per_second()},
                    {"efficiency", efficiency},
                    {"limited_by", limited}});
  }
  return json;
}

int run(int argc, const char* const* argv) {
  const std::optional<Options> options = parse(argc, argv);
  if (!options) return 0;
  const Options& o = *options;
  const std::string program =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "bench_step";
  fmt::print("{}, {}, {} over {}: medians of {} rounds of {:g} s each\n", o.layers, o.optimizer,
             o.comm, o.transport, o.rounds, o.round);
  std::fflush(stdout);
  std::vector<Figure> weak, strong;
  for (int n = 1; n <= o.ranks; ++n) weak.push_back(measure(o, program, n, o.batch));
  nlohmann::ordered_json json{{"per_rank", table(weak, true)}};
  std::fflush(stdout);
  const int all = o.batch * o.ranks;
  for (int n = 1; n <= o.ranks; ++n)
    if (all % n == 0) strong.push_back(measure(o, program, n, all / n));
  json["of_all_ranks"] = table(strong, false);
  if (static_cast<unsigned>(o.ranks) > std::thread::hardware_concurrency())
    fmt::print("\nThere are only {} cores: more ranks share them.\n",
               std::thread::hardware_concurrency());
  if (!o.json.empty()) cli::write_json(o.json, json);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return run(argc, argv); });
}
