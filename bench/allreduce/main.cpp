// `./lockstep bench allreduce`: all-reduces of every size on every communicator and transport,
// beside gloo (through PyTorch) and Open MPI where they are installed, and beside what the machine
// can do at all.
//
// Method: every contender is a separate set of rank processes (contender.h), which are blocked
// while others are timed. At each size all of them are verified, on data that is unique per rank
// and index; then rounds in turns, in an order that is drawn for every round. A round has as many
// calls as take about --round seconds, but 1 to 5000, and before them a tenth as many, at least
// one. The first round warms up. The figure is the median of the rounds, of the time that rank 0
// sees. Ours work on memory of Communicator::allocate, as gradients do.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <random>

#include "lockstep/dist/world/world.h"
#include "lockstep/launch/report.h"
#include "lockstep/tools/cli.h"
#include "rank.h"
#include "report.h"

#ifndef LOCKSTEP_MPIRUN
#define LOCKSTEP_MPIRUN ""  // without MPI
#endif

namespace bench {
namespace {

using namespace lockstep;

constexpr std::string_view worker_word = "--rank-of";

struct Options {
  int ranks = 2;
  std::vector<std::string> comms{"auto", "ring", "direct", "halving", "mpi", "nccl", "nccl-direct"};
  std::vector<std::string> transports{"shm", "tcp", "threads"};
  std::vector<std::string> peers{"gloo", "openmpi"};
  std::int64_t min = 4, max = 256 << 20;
  int rounds = 5;
  double round_seconds = 0.012;
  std::string python, json;
};

/// "64K" as bytes.
std::int64_t parse_size(std::string_view option, const std::string& text) {
  std::int64_t bytes = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, bytes);
  const std::string_view unit(stop, static_cast<std::size_t>(end - stop));
  const int shift = unit == "K" ? 10 : unit == "M" ? 20 : unit == "G" ? 30 : 0;
  constexpr std::int64_t largest = std::int64_t{1} << 34;
  check<UsageError>(error == std::errc() && (unit.empty() || shift > 0) && bytes > 0 &&
                        bytes <= largest >> shift && (bytes << shift) % 4 == 0,
                    "{} {}: not a number of bytes (4, 64K, 256M) of whole f32, at most 16G", option,
                    text);
  return bytes << shift;
}

std::optional<Options> parse(int argc, const char* const* argv) {
  Options o;
  std::string min = "4", max = "256M", peers;
  cli::App app("Times all-reduces of every size", "lockstep bench allreduce");
  app.add_option("--ranks", o.ranks, "Ranks, 2 to 8 (2)").check(cli::whole_number<int>());
  app.add_option("--comm", o.comms,
                 fmt::format("Some of {} ({})", fmt::join(communicator_names(), ", "),
                             fmt::join(o.comms, ",")))
      .delimiter(',')
      .check(cli::one_of(communicator_names()));
  app.add_option("--transport", o.transports, "Some of shm, tcp, threads, ipc (shm,tcp,threads)")
      .delimiter(',')
      .check(cli::one_of({"shm", "tcp", "threads", "ipc"}));
  app.add_option("--min", min, "Smallest size in bytes, for example 4 or 64K (4)");
  app.add_option("--max", max,
                 "Largest size; between them each size is twice the one before (256M)");
  app.add_option("--rounds", o.rounds, "Rounds per size, at least 3 (5)")
      .check(cli::whole_number<int>());
  app.add_option("--round", o.round_seconds, "Seconds per round (0.012)").check(cli::number());
  app.add_option("--peer", peers, "Some of gloo, openmpi; or none (those that are found)")
      .check(cli::one_of({"gloo", "openmpi", "gloo,openmpi", "openmpi,gloo", "none"}));
  app.add_option("--python", o.python, "A Python with torch, for gloo ($LOCKSTEP_PYTHON, python3)");
  app.add_option("--json", o.json, "Write a machine-readable summary");
  if (!app.parse(argc, argv)) return {};
  cli::check_writable("--json", o.json);
  o.min = parse_size("--min", min);
  o.max = parse_size("--max", max);
  if (!peers.empty())
    std::erase_if(o.peers, [&](const auto& peer) { return peers.find(peer) == std::string::npos; });
  check<UsageError>(o.python.empty() || std::ranges::count(o.peers, "gloo") > 0,
                    "--python {} is for gloo, and --peer is {}", o.python, peers);
  check<UsageError>(o.ranks >= 2 && o.ranks <= 8, "--ranks must be in 2..8, got {}", o.ranks);
  check<UsageError>(o.min <= o.max, "--min {} is above --max {}", min, max);
  check<UsageError>(o.rounds >= 3, "--rounds must be at least 3, got {}", o.rounds);
  check<UsageError>(o.round_seconds > 0 && o.round_seconds <= 10,
                    "--round must be in (0, 10], got {}", o.round_seconds);
  return o;
}

// ---- who takes part ----

bool has_transports(std::string_view comm) { return comm != "mpi" && !comm.starts_with("nccl"); }

std::vector<Label> labels(const Options& o) {
  std::vector<Label> result;
  for (const std::string& transport : o.transports)
    for (const std::string& comm : o.comms)
      if (has_transports(comm)) result.push_back({comm, transport});
  for (const std::string& comm : o.comms)
    if (!has_transports(comm)) result.push_back({comm, comm == "mpi" ? "mpi" : "nccl"});
  for (const std::string& peer : o.peers) result.push_back({peer, peer == "gloo" ? "tcp" : "shm"});
  result.push_back({"bound", "shm"});
  result.push_back({"bound", "tcp"});
  if (std::ranges::count(o.transports, "tcp") > 0)
    for (const char* const tags : {"tags", "poly1305"}) result.push_back({tags, "tcp"});
  return result;
}

/// The command that starts all ranks of a contender, but for the folder. Throws UsageError, with
/// the reason, if that is not possible here.
std::vector<std::string> command_for(const Options& o, const Label& label) {
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
  const std::string ranks = std::to_string(o.ranks), capacity = std::to_string(o.max / 4);
  const std::vector<std::string> mpirun{LOCKSTEP_MPIRUN, "--allow-run-as-root", "--oversubscribe",
                                        "-n", ranks};
  const auto by_mpirun = [&](std::vector<std::string> command) {
    check<UsageError>(!mpirun[0].empty(), "this build has no MPI");
    command.insert(command.begin(), mpirun.begin(), mpirun.end());
    return command;
  };
  if (label.comm == "gloo") {
    const std::string python = find_python(o.python);
    check<UsageError>(!python.empty(), "no Python that can import torch (--python)");
    return {python, LOCKSTEP_PEER_SCRIPTS "/gloo_allreduce.py", ranks, capacity};
  }
  if (label.comm == "openmpi")
    return by_mpirun({self.parent_path() / "bench_allreduce_mpi", capacity});
  std::vector<std::string> worker{self,       std::string(worker_word),
                                  label.comm, has_transports(label.comm) ? label.transport : "",
                                  ranks,      capacity};
  return label.comm == "mpi" ? by_mpirun(std::move(worker)) : worker;
}

std::vector<Contender> start_contenders(const Options& o) {
  std::vector<Contender> contenders;
  for (const Label& label : labels(o)) {
    try {
      contenders.emplace_back(label, o.ranks, command_for(o, label));
    } catch (const UsageError& error) {
      fmt::print(stderr, "without {} {}: {}\n", label.transport, label.comm, error.what());
    }
  }
  return contenders;
}

// ---- the sweep ----

std::vector<Timing> time_all(const Options& o, std::vector<Contender>& contenders,
                             std::int64_t bytes) {
  std::vector<Timing> timings;
  std::vector<std::int64_t> calls;
  const auto fitting = [&](double us) {
    return std::clamp<std::int64_t>(std::llround(o.round_seconds * 1e6 / us), 1, 5000);
  };
  for (Contender& contender : contenders) {
    contender.verify(bytes);
    timings.push_back({contender.label(), bytes, {contender.name(), {}}});
    calls.push_back(fitting(contender.time(fitting(contender.time(1)))));
  }
  std::vector<std::size_t> turns(contenders.size());
  std::iota(turns.begin(), turns.end(), std::size_t{0});
  std::mt19937 order(1);  // of each round: what ran before leaves its lines in the caches
  for (int round = 0; round <= o.rounds; ++round) {
    std::ranges::shuffle(turns, order);
    for (const std::size_t k : turns) {
      const double us = contenders[k].time(calls[k]);
      if (round > 0) timings[k].figures.rounds.push_back(us);
      calls[k] = fitting(us);
    }
  }
  return timings;
}

int run_sweep(const Options& o) {
  std::vector<Contender> contenders = start_contenders(o);
  std::vector<std::vector<Timing>> sizes;
  print_heading(o.ranks, o.rounds);
  for (std::int64_t bytes = o.min; bytes <= o.max; bytes *= 2) {
    sizes.push_back(time_all(o, contenders, bytes));
    print_size(sizes.back(), o.ranks);
  }
  print_summary(sizes);
  if (!o.json.empty()) cli::write_json(o.json, summary(sizes, o.ranks));
  return 0;
}

int run(int argc, char** argv) {
  if (argc == 7 && argv[1] == worker_word) {
    const Place place{.comm = argv[2],
                      .transport = argv[3],
                      .ranks = std::atoi(argv[4]),
                      .capacity = std::atoll(argv[5]),
                      .folder = argv[6]};
    return Label{place.comm, ""}.is_part() ? run_bound(place) : run_lockstep(place, argc, argv);
  }
  const std::optional<Options> options = parse(argc, argv);
  return options ? run_sweep(*options) : 0;
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return bench::run(argc, argv); });
}
