#pragma once
/// Runs real programs for the tests: starts them, watches them, and finds what they leave behind.

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/dist/rendezvous/events/rank_event.h"
#include "lockstep/dist/rendezvous/socket.h"
#include "support/text.h"

/// A command line that grows: `words + more`.
inline std::vector<std::string> operator+(std::vector<std::string> words,
                                          const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

namespace lockstep::test {

/// How a program ended and what it wrote.
struct Ended {
  int code = -1;  ///< exit code, -1 if a signal ended it
  int signal = 0;
  std::string out, err;
};

/// What a file of /proc says; empty for a process that has ended, or ends meanwhile.
std::string text_in_proc(const std::filesystem::path& file);

/// A running program with stdin from /dev/null and no signal ignored. It and everything it starts
/// carry a mark of their own in their environment. Whatever is left is killed at the end.
class Process {
 public:
  /// `command[0]` is searched in PATH.
  explicit Process(const std::vector<std::string>& command,
                   const std::vector<std::string>& variables = {});
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t id() const { return id_; }
  std::string out() const;  ///< what it has written to stdout up to now
  std::string err() const;

  /// Waits until `text` has appeared in stdout `times` times; fails the test after a minute.
  void wait_for_output(const std::string& text, int times = 1) const;

  /// Waits for the end of the program itself; fails the test after a minute.
  Ended wait();

  /// How it ended, if it has. That is told once, here or by wait().
  std::optional<Ended> try_wait();

  /// The living processes that carry this one's mark, itself included.
  std::vector<pid_t> family() const;

  /// Waits until no process of the family lives; fails the test after a minute.
  void wait_for_empty_family() const;

 private:
  std::string mark_;
  dist::Descriptor out_, err_;
  pid_t id_ = -1;
  bool waited_ = false;
};

Ended run(const std::vector<std::string>& command, const std::vector<std::string>& variables = {});

/// `lockstep-run -n ranks [options] sh -c script`.
std::vector<std::string> launched(int ranks, const std::string& script,
                                  const std::vector<std::string>& options = {});

/// A command of a rank's script, with a "; " at its end: tells its launcher something.
inline std::string tells(const dist::RankEvent& event) {
  const std::string line = event.text();
  return "echo '" + line.substr(0, line.size() - 1) + "' > /proc/self/fd/$LOCKSTEP_ERROR_FD; ";
}
/// Why it fails.
inline std::string tells_failure(bool consequence, const std::string& message) {
  return tells({.kind = dist::RankEvent::Kind::failed, .failure = {consequence, message}});
}
inline std::string leaves_replica(std::uint64_t model, std::uint64_t fingerprint) {
  return tells({.kind = dist::RankEvent::Kind::replica, .replica = {model, fingerprint}});
}

}  // namespace lockstep::test
