#include "lockstep/launch/guardian.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

namespace lockstep::dist {
namespace {

constexpr std::size_t most_groups = 65536;

// Runs in the guardian. Forked from a program that may have threads, so only async-signal-safe
// calls, and memory that was there before.
[[noreturn]] void guard(int lifeline, std::array<pid_t, most_groups>& groups, const char* folder,
                        const char* socket) {
  // A signal meant for the launcher's group, or a terminal that hangs up, must not end the
  // guardian.
  setpgid(0, 0);
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, nullptr);
  prctl(PR_SET_NAME, "guardian");
  // Nobody who waits for the end of the launcher's output should have to wait for the guardian.
  if (dup2(lifeline, 0) < 0 || close_range(1, ~0U, 0) != 0) _exit(1);

  std::size_t count = 0;
  for (;;) {
    pid_t group = 0;
    const ssize_t got = read(0, &group, sizeof group);  // such small writes arrive whole (pipe(7))
    if (got < 0 && errno == EINTR) continue;
    if (got != static_cast<ssize_t>(sizeof group)) break;
    if (count < most_groups && group > 1) groups[count++] = group;
  }
  for (std::size_t i = 0; i < count; ++i) kill(-groups[i], SIGKILL);
  remove_job_folder(folder, socket);
  _exit(0);
}

}  // namespace

void remove_job_folder(const char* folder, const char* socket) noexcept {
  unlink(socket);
  rmdir(folder);
}

Guardian::Guardian(const std::string& folder) {
  auto [read_end, write_end] = make_pipe();
  lifeline_ = std::move(write_end);
  const std::string socket = folder + "/rendezvous";
  static std::array<pid_t, most_groups> groups;  // touched by the guardian only
  pid_ = checked(fork(), "start the guardian process");
  if (pid_ == 0) guard(read_end.get(), groups, folder.c_str(), socket.c_str());
}

Guardian::~Guardian() {
  kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace lockstep::dist
