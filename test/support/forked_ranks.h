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

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/dist/rendezvous/endpoint.h"
#include "lockstep/dist/rendezvous/environment.h"
#include "support/expect.h"
#include "support/free_address.h"
#include "support/temporary_folder.h"
#include "support/text.h"

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

/// In a child: the environment that lockstep-run would give it, for World::join(). With
/// `ranks_per_node`, that of a world on several machines; the last one may have fewer ranks.
inline void set_rank_environment(int rank, int size, const std::string& rendezvous,
                                 int ranks_per_node = dist::max_ranks) {
  const auto set = [](const char* name, const std::string& value) {
    setenv(name, value.c_str(), 1);
  };
  const int node = rank / ranks_per_node, first = node * ranks_per_node;
  set("RANK", std::to_string(rank));
  set("LOCAL_RANK", std::to_string(rank - first));
  set("WORLD_SIZE", std::to_string(size));
  set("LOCAL_WORLD_SIZE", std::to_string(std::min(ranks_per_node, size - first)));
  set("GROUP_RANK", std::to_string(node));
  set("LOCKSTEP_JOB", "test");
  set("LOCKSTEP_RENDEZVOUS", rendezvous);
}

inline int entries(const std::string& folder) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (!contains(entry.path().filename().string(), "vader_segment")) ++count;  // Open MPI's
  return count;
}

/// An error's Outcome::kind.
inline std::string kind_of(const std::exception& error) {
  if (dynamic_cast<const PeerError*>(&error)) return "peer";
  if (dynamic_cast<const CommError*>(&error)) return "comm";
  if (dynamic_cast<const UsageError*>(&error)) return "usage";
  return "other";
}

/// What a child runs. It ends without the parent's exit handlers.
template <class F>
[[noreturn]] void child_main(int rank, int report, F& body) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::string text;
  try {
    body(rank);
  } catch (const std::exception& error) {
    text = kind_of(error) + "|" + error.what();
  }
  const std::size_t length = std::min<std::size_t>(text.size(), 4000);
  [[maybe_unused]] const ssize_t written = ::write(report, text.data(), length);
  ::_exit(text.empty() ? 0 : 1);
}

/// Runs body(rank) in `size` forked processes. Those that have not ended after `limit` seconds are
/// killed: their signal is 9 and their message says so; those that are stopped, once all others
/// have ended. Call it only while this process has one thread.
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
  std::vector<bool> stopped(pids.size());
  std::size_t left = pids.size();
  bool killed = false;
  while (left > 0) {
    for (std::size_t r = 0; r < pids.size(); ++r) {
      int status = 0;
      constexpr int changes = WNOHANG | WUNTRACED | WCONTINUED;
      if (pids[r] == 0 || waitpid(pids[r], &status, changes) != pids[r]) continue;
      stopped[r] = WIFSTOPPED(status);
      if (WIFSTOPPED(status) || WIFCONTINUED(status)) continue;
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
    const auto asleep = static_cast<std::size_t>(std::ranges::count(stopped, true));
    const bool rest_is_stopped = left < pids.size() && left == asleep;
    if (left > 0 && !killed && (elapsed() > limit || rest_is_stopped)) {
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
