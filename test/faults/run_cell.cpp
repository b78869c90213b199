// One cell: starts the ranks, waits for the fault, watches how all of it ends and what is left.

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "faults/cell.h"
#include "lockstep/core/system/atomic_file.h"
#include "lockstep/nn/checkpoint/safetensors.h"
#include "support/free_address.h"
#include "support/program.h"
#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {

using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;

constexpr double moment_limit = 30;  // until the victim comes to its moment; the machine is shared
// From a survivor's error on: the launcher gives the others a second, then SIGTERM, then the grace.
constexpr double end_limit = timeout + 1 + 1 + grace + 1.5;

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}
template <class Condition>
bool within(double seconds, Condition&& holds) {
  for (const auto start = Clock::now(); !holds();) {
    if (since(start) > seconds) return holds();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

std::vector<std::string> victim_command(const Cell& cell, const std::string& folder) {
  return {LOCKSTEP_BIN_DIR "/fault_victim",
          cell.fault->name,
          *cell.moment,
          std::to_string(cell.victim),
          *cell.transport,
          std::to_string(timeout),
          folder};
}

std::vector<std::string> joined(std::vector<std::string> first,
                                const std::vector<std::string>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

/// Variables of all starts. Every temporary file and socket has its place in the cell's folder.
std::vector<std::string> usual_variables(const std::string& place) {
  return {"TMPDIR=" + place, "XDG_RUNTIME_DIR=" + place, "OMP_NUM_THREADS=1",
          "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"};
}

using Programs = std::vector<std::unique_ptr<Process>>;

Programs start_launchers(const Cell& cell, const std::vector<std::string>& command,
                         const std::vector<std::string>& variables) {
  Programs programs;
  const auto start = [&](const std::vector<std::string>& launcher) {
    programs.push_back(std::make_unique<Process>(joined(launcher, command), variables));
  };
  const std::string run = LOCKSTEP_BIN_DIR "/lockstep-run", n = std::to_string(ranks);
  const std::string seconds = std::to_string(grace);
  if (cell.start->name == "mpirun")
    start({"mpirun", "--oversubscribe", "-n", n});
  else if (cell.start->name == "lockstep-run")
    start({run, "-n", n, "--grace", seconds});
  else
    for (const std::string address = free_address(); const std::string node : {"0", "1"})
      start({run, "-n", node == "0" ? "2" : "1", "--nnodes", "2", "--node-rank", node,
             "--rendezvous", address, "--grace", seconds});
  return programs;
}

Programs start_ranks(const Cell& cell, const std::vector<std::string>& command,
                     std::vector<std::string> variables, const std::string& place) {
  const std::string host = own_host(), port = std::to_string(free_port());
  const std::string size = std::to_string(ranks);
  for (const std::string& one :
       {"WORLD_SIZE=" + size, "LOCAL_WORLD_SIZE=" + size, std::string("GROUP_RANK=0"),
        "MASTER_ADDR=" + host, "MASTER_PORT=" + port})
    variables.push_back(one);
  if (cell.start->name == "torchrun")
    variables = joined(variables, {"TORCHELASTIC_RUN_ID=none", "TORCHELASTIC_RESTART_COUNT=0"});
  else
    variables.push_back("LOCKSTEP_RENDEZVOUS=" + (*cell.transport == "shm"
                                                      ? "unix:" + place + "/rendezvous"
                                                      : host + ":" + port));
  Programs programs;
  for (int rank = 0; rank < ranks; ++rank)
    programs.push_back(std::make_unique<Process>(
        command,
        joined(variables, {fmt::format("RANK={}", rank), fmt::format("LOCAL_RANK={}", rank)})));
  return programs;
}

/// Stops all processes of the job for longer than the timeout, then lets all of them continue.
void pause_all(const Programs& programs, const std::string& folder) {
  std::vector<pid_t> all;
  for (const auto& program : programs)
    for (const pid_t process : program->family()) all.push_back(process);
  for (const pid_t process : all) ::kill(process, SIGSTOP);
  ::usleep(static_cast<useconds_t>((timeout + 0.7) * 1e6));
  std::ofstream(folder + "/continued") << "";
  for (const pid_t process : all) ::kill(process, SIGCONT);
}

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::map<std::string, Tensor> old_checkpoint() { return {{"old", Tensor::full({100}, 0.25)}}; }

/// The size of a file of safetensors is in its header.
bool is_whole(const std::string& text) {
  std::uint64_t length = 0, most = 0;
  if (text.size() < sizeof length) return false;
  std::memcpy(&length, text.data(), sizeof length);
  if (text.size() - sizeof length < length) return false;
  const auto header = nlohmann::json::parse(text.substr(sizeof length, length), nullptr, false);
  if (!header.is_object()) return false;
  for (const auto& [name, tensor] : header.items())
    if (name != "__metadata__")
      most = std::max(most, tensor["data_offsets"][1].get<std::uint64_t>());
  return sizeof length + length + most == text.size();
}

bool has_unfinished(const fs::path& folder) {
  return std::ranges::any_of(fs::directory_iterator(folder), [](const fs::directory_entry& entry) {
    return entry.path().extension() == ".tmp";
  });
}

/// What the folders hold when all is over.
void look_for_leftovers(const fs::path& place, const std::string& checkpoint, Seen& seen) {
  const std::string now = text_of(checkpoint);
  seen.checkpoint_old = is_whole(now) && contains(now, "\"old\"");
  seen.checkpoint_new = is_whole(now) && contains(now, "\"0.weight\"");
  const fs::path folder = fs::path(checkpoint).parent_path();
  if (has_unfinished(folder)) seen.files.emplace_back("an unfinished checkpoint");
  // A process that was killed keeps its lock until the system has closed its files.
  seen.next_save_cleans = within(1, [&] {
    nn::save_safetensors(checkpoint, old_checkpoint());
    return !has_unfinished(folder);
  });
  for (const auto& entry : fs::recursive_directory_iterator(place)) {
    // The user's private folder stays; what lies in it must not.
    if (entry.path().filename() == fmt::format("lockstep-{}", ::geteuid())) continue;
    seen.files.push_back(entry.is_socket() ? "a socket" : entry.path().filename().string());
  }
}

/// Whether the programs have ended; a rank that hangs, and was started by the drill itself, aside.
bool all_ended(const Programs& programs, const Cell& cell, Seen& seen) {
  const bool hangs = cell.fault->name == "SIGSTOP" || cell.fault->name == "loop";
  bool all = true;
  for (std::size_t k = 0; k < programs.size(); ++k) {
    if (seen.codes[k] >= 0 || seen.signals[k] > 0) continue;
    if (const auto end = programs[k]->try_wait()) {
      seen.codes[k] = end->code;
      seen.signals[k] = end->signal;
    } else if (cell.start->ends_ranks || !hangs || static_cast<int>(k) != cell.victim) {
      all = false;
    } else {
      seen.victim_left = true;  // nobody is there who would end it
    }
  }
  return all;
}

}  // namespace

Seen run_cell(const Cell& cell) {
  const TemporaryFolder data, place;
  const std::string folder = data.path().string(), checkpoint = folder + "/checkpoint";
  nn::save_safetensors(checkpoint, old_checkpoint());
  const auto command = victim_command(cell, folder);
  const auto variables = usual_variables(place.path().string());
  Seen seen;
  {
    const bool by_drill = cell.start->name == "torchrun" || cell.start->name == "by hand";
    const Programs programs = by_drill
                                  ? start_ranks(cell, command, variables, place.path().string())
                                  : start_launchers(cell, command, variables);
    seen.codes.assign(programs.size(), -1);
    seen.signals.assign(programs.size(), 0);
    seen.said.resize(ranks);
    seen.reached = within(moment_limit, [&] { return fs::exists(folder + "/reached"); });
    const auto file_time = [&](const std::string& name) {
      std::error_code error;
      return fs::last_write_time(folder + "/" + name, error);
    };
    if (seen.reached && cell.fault->name == "pause") pause_all(programs, folder);
    const auto moment = Clock::now();
    seen.ended = within(end_limit, [&] { return all_ended(programs, cell, seen); });
    seen.seconds = since(moment);
    for (int rank = 0; rank < ranks; ++rank) {
      const std::string name = fmt::format("said.{}", rank);
      seen.said[static_cast<std::size_t>(rank)] = text_of(folder + "/" + name);
      if (!fs::exists(folder + "/" + name)) continue;
      const std::chrono::duration<double> late = file_time(name) - file_time("reached");
      seen.slowest_said = std::max(seen.slowest_said, late.count());
    }
    // A process that was killed may take a moment to go.
    within(1, [&] {
      seen.left_running = -static_cast<int>(seen.victim_left);
      for (const auto& program : programs)
        seen.left_running += static_cast<int>(program->family().size());
      return seen.left_running == 0;
    });
    for (const auto& program : programs) {
      seen.err += program->err();
      for (const pid_t process : program->family()) ::kill(process, SIGKILL);
    }
    for (const auto& program : programs) program->wait_for_empty_family();
  }
  look_for_leftovers(place.path(), checkpoint, seen);
  return seen;
}

}  // namespace lockstep::test
