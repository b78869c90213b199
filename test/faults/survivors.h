#pragma once
/// `train --survive` as the drills of survival run it, and the processes of its ranks.

#include <signal.h>

#include <fstream>
#include <nlohmann/json.hpp>
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

}  // namespace lockstep::test
