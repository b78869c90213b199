#pragma once
/// `train --survive` as the drills of survival run it, and the processes of its ranks.

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "support/expect.h"
#include "support/program.h"
#include "support/temporary_folder.h"

namespace lockstep::test {

using Words = std::vector<std::string>;

inline Words command(const Words& options, const char* epochs = "60") {
  Words words = {
      LOCKSTEP_BIN_DIR "/train_mlp", "--lanes", "8", "--batch", "64", "--epochs", epochs};
  words.insert(words.end(), options.begin(), options.end());
  return words;
}

inline nlohmann::json json_in(const std::string& path) {
  return nlohmann::json::parse(std::ifstream(path));
}

/// The undisturbed run: on one rank, as lanes promise the same bits.
inline const nlohmann::json& whole() {
  static const nlohmann::json json = [] {
    const TemporaryFolder folder;
    const Ended ended = run(command({"--ranks", "1", "--json", folder / "json"}));
    expect(ended.code == 0, "{}", ended.err);
    return json_in(folder / "json");
  }();
  return json;
}

inline char state_of(pid_t process) {
  const std::string text = text_in_proc("/proc/" + std::to_string(process) + "/stat");
  const std::size_t name_end = text.rfind(')');
  return name_end == text.npos ? 'X' : text[name_end + 2];
}

/// The living children of the launcher that run a program of this name.
inline std::vector<pid_t> ranks_named(pid_t launcher, const std::string& program) {
  const std::string id = std::to_string(launcher);
  std::istringstream children(text_in_proc("/proc/" + id + "/task/" + id + "/children"));
  std::vector<pid_t> ranks;
  for (pid_t child = 0; children >> child;) {
    const std::string name = text_in_proc("/proc/" + std::to_string(child) + "/comm");
    if (name.starts_with(program) && state_of(child) != 'Z') ranks.push_back(child);
  }
  return ranks;
}
inline std::vector<pid_t> ranks_of(pid_t launcher) { return ranks_named(launcher, "train_mlp"); }

/// The number that the launcher has given a rank; -1 if it has ended, or not begun.
inline int number_of(pid_t rank) {
  const std::string text = text_in_proc("/proc/" + std::to_string(rank) + "/environ");
  const std::size_t at = ('\0' + text).find(std::string("\0RANK=", 6));
  return at == text.npos ? -1 : std::stoi(text.substr(at + 5));
}

/// Each rank that is said to be lost is one of these. -1: one that had not begun: it had no number.
inline void check_names(const std::string& err, const std::vector<int>& disturbed) {
  if (std::ranges::count(disturbed, -1) > 0) return;
  const std::regex lost("rank ([0-9]+) (hangs and |is [a-z]+ and )?was killed");
  for (std::sregex_iterator at(err.begin(), err.end(), lost), end; at != end; ++at)
    expect(std::ranges::count(disturbed, std::stoi((*at)[1])) > 0, "rank {} was not disturbed: {}",
           (*at)[1].str(), err);
}

/// The processor time that a process has had so far, in seconds.
inline double cpu_seconds(pid_t process) {
  const std::string text = text_in_proc("/proc/" + std::to_string(process) + "/stat");
  std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));
  std::string skipped;
  for (int field = 3; field < 14; ++field) fields >> skipped;
  double user = 0, system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

/// The program `survivor` with this plan on four ranks, which have to end well.
inline Ended survive_deeds(const std::string& plan) {
  const TemporaryFolder folder;
  return run({LOCKSTEP_BIN_DIR "/lockstep-run", "-n", "4", "--survive",
              LOCKSTEP_BIN_DIR "/survivor", plan, folder / "checkpoint"});
}
/// What it prints if nobody is disturbed; the bits are in its first 64 letters.
inline const std::string& undisturbed_deeds() {
  static const std::string out = survive_deeds("none").out;
  return out;
}

/// How much of a core a launcher takes: at rest a thousandth.
class LauncherLoad {
 public:
  explicit LauncherLoad(pid_t launcher) : launcher_(launcher) {}
  /// Call it often, as the system forgets who has ended.
  void look() {
    const double now = cpu_seconds(launcher_);
    if (now > 0) last_ = now, seen_ = Clock::now();
  }
  double share() const {
    const std::chrono::duration<double> passed = seen_ - start_;
    return (last_ - first_) / std::max(passed.count(), 1.0);
  }

 private:
  using Clock = std::chrono::steady_clock;
  pid_t launcher_;
  double first_ = cpu_seconds(launcher_), last_ = first_;
  Clock::time_point start_ = Clock::now(), seen_ = start_;
};

}  // namespace lockstep::test
