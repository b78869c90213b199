// `./lockstep doctor`: checks whether jobs can train here (dist/doctor/doctor.h), and says what to
// do if not. Alone it starts ranks of its own; in a launcher's world it is one of its ranks.

#include "lockstep/dist/doctor/doctor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <future>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lockstep/core/text/number.h"
#include "lockstep/dist/doctor/gpu.h"
#include "lockstep/dist/gpu/device_engine.h"
#include "lockstep/launch/launch.h"
#include "lockstep/launch/report.h"
#include "lockstep/tools/cli.h"

namespace {

using namespace lockstep;
using doctor::Finding;

struct Options {
  int ranks = 2;
  std::string comm = "auto", transport, folder = ".", json;
  double timeout = 10, megabytes = 64;
  cli::DeviceOptions device;

  std::uint64_t bytes() const { return static_cast<std::uint64_t>(megabytes * 1e6); }
};

std::optional<Options> parse(int argc, const char* const* argv) {
  Options o;
  cli::App app("Checks whether jobs can train here, and says what to do if not", "lockstep doctor");
  app.add_option("--ranks", o.ranks, "Ranks to start; in a launcher's world: its size (2)")
      .check(cli::whole_number<int>());
  app.add_option("--device", o.device.device,
                 "cpu, sim or cuda: with GPUs, they are checked too (cuda where a GPU is found)")
      .check(cli::one_of({"cpu", "sim", "cuda"}));
  app.add_option("--comm", o.comm, fmt::format("{} (auto)", fmt::join(communicator_names(), ", ")))
      .check(cli::one_of(communicator_names()));
  app.add_option("--transport", o.transport, "shm or tcp (shm inside a machine)")
      .check(cli::one_of({"shm", "tcp"}));
  app.add_option("--folder", o.folder, "Where checkpoints are to be written (.)");
  app.add_option("--gradients-mb", o.megabytes, "Of gradients, per rank (64)").check(cli::number());
  app.add_option("--timeout", o.timeout, "Seconds to wait for another rank (10)")
      .check(cli::number());
  app.add_option("--json", o.json, "Also write the findings to this file");
  if (!app.parse(argc, argv)) return {};
  check<UsageError>(o.ranks > 0 && o.ranks <= dist::max_ranks, "--ranks must be in 1..{}, got {}",
                    dist::max_ranks, o.ranks);
  check<UsageError>(o.timeout > 0 && o.megabytes >= 0 && o.megabytes < 1e9,
                    "--timeout {} and --gradients-mb {}: both must be positive, and below 1e9 MB",
                    o.timeout, o.megabytes);
  cli::check_writable("--json", o.json);
  o.device.check_build();
  return o;
}

/// Prints findings as they come, and knows what the exit code is.
class Report {
 public:
  explicit Report(const Options& options) : path_(options.json) {}

  /// A rank other than 0 prints nothing, unless it has to say why it ends.
  void keep_silent() { silent_ = other_rank_ = true; }
  void speak() { silent_ = false; }

  void add(const Finding& finding) {
    if (!silent_) fmt::print("{}\n", doctor::to_text(finding));
    std::fflush(stdout);
    bad_ += finding.good ? 0 : 1;
    json_.push_back({{"check", finding.check},
                     {"good", finding.good},
                     {"found", finding.found},
                     {"advice", finding.advice}});
  }
  void add(const std::vector<Finding>& findings) {
    for (const Finding& finding : findings) add(finding);
  }
  int end() {
    if (!silent_)
      fmt::print("{}\n", bad_ == 0   ? "Nothing is wrong."
                         : bad_ == 1 ? "There is 1 problem."
                                     : fmt::format("There are {} problems.", bad_));
    if (!path_.empty() && !other_rank_) cli::write_json(path_, json_);
    return bad_ == 0 ? 0 : 1;
  }

 private:
  std::string path_;
  bool silent_ = false, other_rank_ = false;
  nlohmann::ordered_json json_ = nlohmann::ordered_json::array();
  int bad_ = 0;
};

/// What is wrong with each machine but rank 0's, as one of its ranks has found it. Collective.
std::vector<Finding> of_other_machines(const World& world, const std::vector<Finding>& mine) {
  std::string bad;
  for (const Finding& finding : mine)
    if (!finding.good)
      bad += fmt::format("{}\n{}\n{}\n", finding.check, finding.found, finding.advice);
  std::vector<Finding> findings;
  const auto texts =
      dist::gather_text(world.communicator(), world.rank() == 0 ? "" : bad, "doctor");
  for (std::size_t r = 0; r < texts.size(); ++r) {
    std::istringstream lines = classic_stream(texts[r]);
    Finding finding;
    finding.good = false;
    while (std::getline(lines, finding.check) && std::getline(lines, finding.found) &&
           std::getline(lines, finding.advice)) {
      finding.found = fmt::format("rank {}'s machine: {}", r, finding.found);
      findings.push_back(finding);
    }
  }
  return findings;
}

/// This rank's GPU.
struct Gpu {
  bool asked = false;     // by the options, or because there is one
  Device device;          // the cpu if there is none
  bool computes = false;  // the driver and the kernels of this build fit it
};

Gpu gpu_of(const Options& o, int local_rank) {
  Gpu mine;
  if (!o.device.names_gpu() || gpu::count() > 0) mine.device = o.device.choose(local_rank);
  mine.asked = o.device.names_gpu() || mine.device != Device{};
  if (mine.device == Device{}) return mine;
  const gpu::Facts facts = gpu::facts();
  mine.computes = doctor::check_driver(facts, {}).good && doctor::check_capability(facts).good;
  return mine;
}

/// What the system says of this machine's GPUs. nvidia-smi may take longer than other ranks wait:
/// it runs beside.
class LookAround {
 public:
  void begin() {
    around_ = std::async(std::launch::async, [] { return doctor::look_around(&std::getenv); });
  }
  bool ends_within(std::chrono::milliseconds time) const {
    return !around_.valid() || around_.wait_for(time) == std::future_status::ready;
  }
  std::vector<Finding> judge(const std::optional<dist::LaunchInfo>& info) {
    if (!around_.valid()) return {};
    const doctor::GpuJob job{.ranks = info ? info->local_size : 1,
                             .several_machines = info && info->local_size < info->size,
                             .nccl = dist::nccl_available()};
    return doctor::check_gpus(gpu::facts(), around_.get(), job);
  }

 private:
  std::future<doctor::Surroundings> around_;
};

/// All ranks wait for the slowest, and none of them for long at a time. Collective.
void wait_for(const World& world, const LookAround& around) {
  while (true) {
    const bool ends = around.ends_within(std::chrono::milliseconds(100));
    const auto texts = dist::gather_text(world.communicator(), ends ? "" : "waits", "doctor");
    if (std::ranges::all_of(texts, &std::string::empty)) return;
  }
}

/// With tensors on GPUs, if every rank has one that computes. Collective.
void look_at_gpus(const World& world, const Options& o, const Gpu& mine, Report& report) {
  const auto computes =
      dist::gather_text(world.communicator(), mine.computes ? "computes" : "", "doctor");
  if (!std::ranges::none_of(computes, &std::string::empty)) return;
  report.add(doctor::check_containers(world));
  report.add(doctor::check_gpu_memory(world, mine.device, o.bytes()));
  report.add(doctor::check_all_reduce(world, mine.device));
  report.add(doctor::check_gradients(world, mine.device));
}

/// One rank: all look at what only they see, rank 0 prints.
int run_rank(const Options& o) {
  Report report(o);
  const auto give_up = [&](const Finding& why) {
    report.add(why);
    report.end();
    throw AlreadyReported{1};
  };
  const Finding environment = doctor::check_environment(&std::getenv);
  if (!environment.good) give_up(environment);
  const auto info = dist::read_environment();
  const bool first = !info || info->rank == 0;
  if (!first) report.keep_silent();
  const Gpu mine = gpu_of(o, info ? info->local_rank : 0);
  std::vector<Finding> machine;  // which only one of its ranks needs to look at
  LookAround around;
  if (!info || info->local_rank == 0) {
    if (mine.asked) around.begin();
    machine = doctor::check_machine(
        {.ranks = info ? info->local_size : 1, .bytes = o.bytes(), .folder = o.folder});
  }
  if (first) report.add(machine);
  std::optional<World> world;
  try {
    world.emplace(World::join(
        {.comm = o.comm, .transport = o.transport, .timeout = dist::Seconds(o.timeout)}));
  } catch (const Error& error) {
    if (first) report.add(around.judge(info));
    report.speak();
    give_up(doctor::explain_join(error));
  }
  try {
    wait_for(*world, around);
    const auto gpus = around.judge(info);
    if (first) report.add(gpus);
    machine.insert(machine.end(), gpus.begin(), gpus.end());
    report.add(of_other_machines(*world, machine));
    report.add(doctor::check_all_reduce(*world));
    report.add(doctor::check_gradients(*world));
    look_at_gpus(*world, o, mine, report);
    report.add(doctor::judge_links(doctor::measure_links(*world)));
    report.add(doctor::measure_step(*world));
  } catch (const Error& error) {
    report.speak();
    give_up(doctor::explain_loss(error));
  }
  try {  // a rank that leaves with 1 would end the checks of the others
    world->communicator().barrier("doctor ends").wait();
  } catch (const Error&) {  // they have left
  }
  if (report.end() != 0) throw AlreadyReported{1};
  return 0;
}

int run(int argc, char** argv) {
  const std::optional<Options> options = parse(argc, argv);
  if (!options) return 0;
  bool launched = true;
  try {
    launched = dist::read_environment().has_value();
  } catch (const Error&) {
    // run_rank says what is wrong with it.
  }
  if (launched || options->ranks == 1) return run_rank(*options);
  return launch::run_this_program({.ranks = options->ranks}, argc, argv);
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return run(argc, argv); });
}
