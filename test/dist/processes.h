#pragma once
/// Ranks as processes, for tests: forks, waits with a limit, and tells how each one ended.

#include <dirent.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/core/error.h"

namespace lockstep::test {

/// How a process ended.
struct Outcome {
  int code = -1;     ///< exit code, or -1
  int signal = 0;    ///< what killed it, or 0
  std::string kind;  ///< "" (no error), "peer" (PeerError), "comm" (CommError), "usage" or "other"
  std::string message;  ///< of the error that left its function
  double seconds = 0;   ///< since the start of all
  bool well() const { return code == 0; }
};

/// In a child, instead of doctest's macros (their counts would stay in the child).
template <class... Args>
void expect(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  check<Error>(condition, format, std::forward<Args>(args)...);
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// A folder that goes with everything in it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "lockstep-test-XXXXXX").string();
    check<Error>(mkdtemp(pattern.data()) != nullptr, "cannot make {}", pattern);
    path_ = pattern;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  bool empty() const { return std::filesystem::is_empty(path_); }

 private:
  std::string path_;
};

/// In a child: the environment that lockstep-run would give it, for World::join().
inline void set_rank_environment(int rank, int size, const std::string& store) {
  const auto set = [](const char* name, const std::string& value) {
    setenv(name, value.c_str(), 1);
  };
  for (const char* name : {"RANK", "LOCAL_RANK"}) set(name, std::to_string(rank));
  for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}) set(name, std::to_string(size));
  set("LOCKSTEP_JOB", "test");
  set("LOCKSTEP_STORE", store);
}

inline int entries(const std::string& folder) {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

/// What a child runs. It ends without the parent's exit handlers.
template <class F>
[[noreturn]] void child_main(int rank, int report, F& body) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::string text;
  try {
    body(rank);
  } catch (const PeerError& error) {
    text = std::string("peer|") + error.what();
  } catch (const CommError& error) {
    text = std::string("comm|") + error.what();
  } catch (const UsageError& error) {
    text = std::string("usage|") + error.what();
  } catch (const std::exception& error) {
    text = std::string("other|") + error.what();
  }
  const std::size_t length = std::min<std::size_t>(text.size(), 4000);
  [[maybe_unused]] const ssize_t written = ::write(report, text.data(), length);
  ::_exit(text.empty() ? 0 : 1);
}

/// Runs body(rank) in `size` forked processes. Those that have not ended after `limit` seconds are
/// killed: their signal is 9 and their message says so. Call it only while this process has one
/// thread.
template <class F>
std::vector<Outcome> run_processes(int size, F body, double limit = 60) {
#ifndef __SANITIZE_THREAD__
  check<Error>(entries("/proc/self/task") == 1, "fork with {} threads", entries("/proc/self/task"));
#endif
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  std::vector<pid_t> pids;
  std::vector<int> reports;
  std::fflush(nullptr);  // or children might print what waits in our buffers once more
  for (int rank = 0; rank < size; ++rank) {
    int ends[2];
    check<Error>(pipe2(ends, O_CLOEXEC) == 0, "no pipe");
    const pid_t pid = fork();
    check<Error>(pid >= 0, "no fork");
    if (pid == 0) child_main(rank, ends[1], body);
    ::close(ends[1]);
    pids.push_back(pid);
    reports.push_back(ends[0]);
  }
  std::vector<Outcome> outcomes(pids.size());
  std::size_t left = pids.size();
  bool killed = false;
  while (left > 0) {
    for (std::size_t r = 0; r < pids.size(); ++r) {
      int status = 0;
      if (pids[r] == 0 || waitpid(pids[r], &status, WNOHANG) != pids[r]) continue;
      Outcome& outcome = outcomes[r];
      outcome.seconds = elapsed();
      if (WIFEXITED(status)) outcome.code = WEXITSTATUS(status);
      if (WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
      char text[4096];
      const ssize_t got = ::read(reports[r], text, sizeof text);
      const std::string record(text, got > 0 ? static_cast<std::size_t>(got) : 0);
      outcome.kind = record.substr(0, record.find('|'));
      outcome.message =
          killed ? "killed: it did not end in time" : record.substr(record.find('|') + 1);
      ::close(reports[r]);
      pids[r] = 0;
      --left;
    }
    if (left > 0 && !killed && elapsed() > limit) {
      killed = true;
      for (const pid_t pid : pids)
        if (pid > 0) ::kill(pid, SIGKILL);
    }
    if (left > 0) ::usleep(1000);
  }
  return outcomes;
}

/// Checks, in the parent, that every process ended well.
inline void check_all_well(const std::vector<Outcome>& outcomes) {
  for (std::size_t r = 0; r < outcomes.size(); ++r) {
    INFO("rank ", r, ": ", outcomes[r].message, " (signal ", outcomes[r].signal, ")");
    CHECK(outcomes[r].well());
  }
}

}  // namespace lockstep::test
