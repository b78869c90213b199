#include "lockstep/launch/rank_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "lockstep/core/error.h"

namespace lockstep::dist {
namespace {

std::vector<std::string> merged_environment(const Environment& additions) {
  std::vector<std::string> merged;
  for (const auto& [name, value] : additions) merged.push_back(name + "=" + value);
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    bool replaced = false;
    for (const auto& addition : additions) replaced |= addition.first == name;
    if (!replaced) merged.emplace_back(text);
  }
  return merged;
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (const std::string& string : strings) result.push_back(const_cast<char*>(string.c_str()));
  result.push_back(nullptr);
  return result;
}

// Runs in the child, between fork and exec: only async-signal-safe calls. Returns if exec failed.
void become_program(const RankSetup& setup, char* const* command, char* const* environment,
                    pid_t launcher) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher) _exit(1);  // the launcher died before the line above

  setpgid(0, 0);
  const pid_t group = getpid();
  // If the guardian is gone (SIGPIPE, which the launcher ignores), the rank runs without.
  [[maybe_unused]] const ssize_t told = write(setup.lifeline, &group, sizeof group);

  dup2(setup.standard_input, 0);
  if (setup.standard_output >= 0) dup2(setup.standard_output, 1);
  if (setup.standard_error >= 0) dup2(setup.standard_error, 2);
  for (int descriptor : setup.inherited) fcntl(descriptor, F_SETFD, 0);

  // Signals reach a rank through the launcher only, so that a shell which ignores SIGINT for its
  // background jobs has no say here. As a background group the rank may still write to a terminal.
  for (int number : {SIGINT, SIGTERM, SIGPIPE, SIGCHLD}) signal(number, SIG_DFL);
  signal(SIGTTOU, SIG_IGN);
  sigprocmask(SIG_SETMASK, &setup.signal_mask, nullptr);
  execvpe(command[0], command, environment);
}

}  // namespace

pid_t start_rank(const RankSetup& setup) {
  const std::vector<std::string> variables = merged_environment(setup.environment);
  const std::vector<char*> command = pointers(setup.command), environment = pointers(variables);
  auto [failure_in, failure_out] = make_pipe();  // carries errno if exec fails; exec closes it

  const pid_t launcher = getpid();
  const pid_t child = checked(fork(), "start another process");
  if (child == 0) {
    become_program(setup, command.data(), environment.data(), launcher);
    const int error = errno;
    [[maybe_unused]] const ssize_t told = write(failure_out.get(), &error, sizeof error);
    _exit(127);
  }
  setpgid(child, child);  // whoever comes first, child or launcher: from here on the group exists
  failure_out.close();
  int error = 0;
  ssize_t got;
  while ((got = read(failure_in.get(), &error, sizeof error)) < 0 && errno == EINTR) {
  }
  if (got == 0) return child;
  while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  fail<Error>("cannot start '{}': {}", setup.command[0], std::strerror(error));
}

}  // namespace lockstep::dist
