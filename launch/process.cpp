#include "lockstep/launch/process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "lockstep/core/error.h"
#include "lockstep/dist/rendezvous/surroundings/nearest.h"

namespace lockstep::launch {

using dist::checked;
using dist::Descriptor;

namespace {

std::vector<std::string> merged_environment(const Environment& additions) {
  std::vector<std::string> merged;
  for (const auto& [name, value] : additions) merged.push_back(name + "=" + value);
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    if (!dist::belongs_to_launcher(name) &&
        std::ranges::count(additions, name, &Environment::value_type::first) == 0)
      merged.emplace_back(text);
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
                    int nothing, pid_t launcher) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher) _exit(1);  // the launcher died before the line above

  setpgid(0, 0);
  const pid_t group = getpid();
  // If the guardian is gone (SIGPIPE, which the launcher ignores), the rank runs without it.
  [[maybe_unused]] const ssize_t told = write(setup.lifeline, &group, sizeof group);

  dup2(setup.standard_input >= 0 ? setup.standard_input : nothing, 0);
  if (setup.standard_output >= 0) dup2(setup.standard_output, 1);
  if (setup.standard_error >= 0) dup2(setup.standard_error, 2);
  for (int descriptor : setup.inherited) fcntl(descriptor, F_SETFD, 0);

  // Signals reach a rank through the launcher only. Otherwise a shell that ignores SIGINT for its
  // background jobs would decide. A background group may still write to a terminal: ignore SIGTTOU.
  for (int number : {SIGINT, SIGTERM, SIGPIPE, SIGCHLD, SIGXFSZ}) signal(number, SIG_DFL);
  signal(SIGTTOU, SIG_IGN);
  sigprocmask(SIG_SETMASK, &setup.signal_mask, nullptr);
  execvpe(command[0], command, environment);
}

// Whether this signal ends a process that has no handler for it (signal(7)).
bool would_end_process(int number) {
  switch (number) {
    case SIGKILL:
    case SIGSTOP:
    case SIGTSTP:
    case SIGTTIN:
    case SIGTTOU:
    case SIGCONT:
    case SIGCHLD:
    case SIGURG:
    case SIGWINCH:
    case SIGPIPE: return false;  // SignalPipe ignores it
    default: return true;
  }
}

constexpr std::size_t most_groups = 65536;

// Runs in the guardian. It was forked from a program that may have threads: only async-signal-safe
// calls, and no new memory.
[[noreturn]] void guard(int lifeline, std::array<pid_t, most_groups>& groups, const char* folder,
                        const char* socket) {
  // A signal meant for the launcher's group, or a terminal that hangs up, must not end the
  // guardian.
  setpgid(0, 0);
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, nullptr);
  prctl(PR_SET_NAME, "lockstep-guard");  // as ps -e, top and pgrep show it
  // A reader that waits for the end of the launcher's output must not wait for the guardian.
  if (dup2(lifeline, 0) < 0 || close_range(1, ~0U, 0) != 0) _exit(1);

  std::size_t count = 0;
  for (;;) {
    pid_t group = 0;
    const ssize_t got = TEMP_FAILURE_RETRY(read(0, &group, sizeof group));
    if (got != static_cast<ssize_t>(sizeof group)) break;  // small writes arrive whole (pipe(7))
    if (count < most_groups && group > 1) groups[count++] = group;
  }
  for (std::size_t i = 0; i < count; ++i) kill(-groups[i], SIGKILL);
  remove_job_folder(folder, socket);
  _exit(0);
}

}  // namespace

pid_t start_rank(const RankSetup& setup) {
  const std::vector<std::string> variables = merged_environment(setup.environment);
  const std::vector<char*> command = pointers(setup.command), environment = pointers(variables);
  const Descriptor nothing(checked(open("/dev/null", O_RDONLY | O_CLOEXEC), "open /dev/null"));
  // Carries errno if exec fails; exec closes it.
  auto [failure_in, failure_out] = dist::make_pipe();

  const pid_t launcher = getpid();
  const pid_t child = checked(fork(), "start another process");
  if (child == 0) {
    become_program(setup, command.data(), environment.data(), nothing.get(), launcher);
    const int error = errno;
    [[maybe_unused]] const ssize_t told = write(failure_out.get(), &error, sizeof error);
    _exit(127);
  }
  setpgid(child, child);  // child and launcher both do it: from here on the group exists
  failure_out.close();
  int error = 0;
  if (TEMP_FAILURE_RETRY(read(failure_in.get(), &error, sizeof error)) == 0) return child;
  TEMP_FAILURE_RETRY(waitpid(child, nullptr, 0));
  fail<Error>("cannot start '{}': {}", setup.command[0], dist::system_message(error));
}

SignalPipe::SignalPipe() {
  sigemptyset(&wanted_);
  sigaddset(&wanted_, SIGUSR1);
  sigprocmask(SIG_BLOCK, &wanted_, &mask_before_);
  for (int number : {SIGINT, SIGTERM, SIGCHLD}) sigaddset(&wanted_, number);
  for (int number = 1; number <= SIGRTMAX; ++number) {
    struct sigaction action;
    if (sigaction(number, nullptr, &action) != 0) continue;  // the C library keeps it for itself
    const bool of_terminal = number == SIGHUP || number == SIGTSTP;
    if (of_terminal ? action.sa_handler != SIG_IGN
                    : would_end_process(number) && action.sa_handler == SIG_DFL)
      sigaddset(&wanted_, number);
  }
  descriptor_ = Descriptor(checked(signalfd(-1, &wanted_, SFD_CLOEXEC | SFD_NONBLOCK),
                                   "take signals from a descriptor"));
  child_action_ = signal(SIGCHLD, SIG_DFL);  // if it is ignored, the kernel reaps children unseen
  pipe_action_ = signal(SIGPIPE, SIG_IGN);
}

void SignalPipe::block_all() { sigprocmask(SIG_BLOCK, &wanted_, nullptr); }

SignalPipe::~SignalPipe() {
  take();  // a late signal has nothing left to do: all ranks have ended
  sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
  signal(SIGCHLD, child_action_);
  signal(SIGPIPE, pipe_action_);
}

SignalPipe::Taken SignalPipe::take() {
  Taken taken;
  signalfd_siginfo info;
  while (read(descriptor_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    const int number = static_cast<int>(info.ssi_signo);
    if (number == SIGTSTP)
      taken.suspend = true;
    else if (number == SIGUSR1)
      ++taken.more;
    else if (!taken.end && number != SIGCHLD)
      taken.end = number;
  }
  return taken;
}

void remove_job_folder(const char* folder, const char* socket) noexcept {
  unlink(socket);
  rmdir(folder);
}

Guardian::Guardian(const std::string& folder) {
  auto [read_end, write_end] = dist::make_pipe();
  lifeline_ = std::move(write_end);
  const std::string socket = folder + "/rendezvous";
  static std::array<pid_t, most_groups> groups;  // only the guardian uses it
  pid_ = checked(fork(), "start the guardian process");
  if (pid_ == 0) guard(read_end.get(), groups, folder.c_str(), socket.c_str());
}

Guardian::~Guardian() {
  kill(pid_, SIGKILL);
  TEMP_FAILURE_RETRY(waitpid(pid_, nullptr, 0));
}

}  // namespace lockstep::launch
