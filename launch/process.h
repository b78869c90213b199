#pragma once
/// What a launcher needs of processes: starting one per rank, reading their output by lines, taking
/// signals from a descriptor, and a guardian that ends the ranks if the launcher is killed.
///
/// Thread-safety: use all of it from the launcher's one thread.

#include <signal.h>
#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/dist/rendezvous/socket.h"

namespace lockstep::launch {

using Environment = std::vector<std::pair<std::string, std::string>>;

/// What a rank's process is given. It does not get other descriptors that were opened with
/// O_CLOEXEC.
struct RankSetup {
  const std::vector<std::string>& command;  ///< the program, searched in PATH, and its arguments
  Environment environment;     ///< added to the launcher's own; replaces variables of the same name
  int lifeline = -1;           ///< Guardian::lifeline()
  int standard_input = -1;     ///< -1: /dev/null
  int standard_output = -1;    ///< -1: the launcher's
  int standard_error = -1;     ///< -1: the launcher's
  std::vector<int> inherited;  ///< stay open under their own numbers
  sigset_t signal_mask;        ///< the mask that the launcher itself was started with
};

/// Starts the rank in its own process group. Returns its process id, which is also its group's. The
/// rank dies when the calling thread ends. Throws Error `cannot start 'x': No such file or
/// directory`.
pid_t start_rank(const RankSetup& setup);

/// Cuts a stream of bytes into lines. A line longer than `longest_line` is cut there, so that a
/// program that never ends its line costs no memory.
class LineSplitter {
 public:
  static constexpr std::size_t longest_line = 8192;

  /// Calls `line(std::string_view)` for every line that `bytes` completes.
  template <class F>
  void feed(std::string_view bytes, F&& line) {
    for (const char c : bytes) {
      if (c != '\n') partial_ += c;
      if (c == '\n' || partial_.size() == longest_line) line(std::exchange(partial_, {}));
    }
  }

  /// At the end: what came after the last newline, if it is not empty.
  template <class F>
  void finish(F&& line) {
    if (!partial_.empty()) line(std::exchange(partial_, {}));
  }

 private:
  std::string partial_;
};

/// Signals as readable bytes: a launcher waits for them in the same poll() as for everything else.
/// There is no handler, and no race between a check and a wait.
///
/// While this exists, SIGUSR1, and from block_all() on SIGINT, SIGTERM, SIGCHLD, SIGHUP, SIGTSTP
/// (these two unless they are ignored: nohup) and all others that would end this process do not act
/// on the calling thread but make descriptor() readable. SIGPIPE is ignored. A signal that is
/// ignored, or has a handler of the program, stays so. The destructor restores the state before.
class SignalPipe {
 public:
  SignalPipe();
  ~SignalPipe();

  int descriptor() const { return descriptor_.get(); }
  /// Until then SIGINT and the like end this process at once: there is nothing to end before it.
  /// What is forked later begins with all of them blocked.
  void block_all();

  /// The signals that were blocked before, for the programs that are started meanwhile.
  const sigset_t& mask_before() const { return mask_before_; }

  struct Taken {
    std::optional<int> end{};  ///< the first one that is none of the following
    bool suspend = false;      ///< SIGTSTP
    int more = 0;              ///< how often SIGUSR1 has come, as far as the kernel counts
  };
  /// Takes all signals that have come. SIGCHLD only has to wake up poll().
  Taken take();

 private:
  dist::Descriptor descriptor_;
  sigset_t wanted_;
  sigset_t mask_before_;
  void (*child_action_)(int);
  void (*pipe_action_)(int);
};

/// No process survives its launcher, not even if the launcher is killed with SIGKILL and cannot
/// clean up. The kernel kills the ranks themselves (PR_SET_PDEATHSIG), but a rank may be a shell
/// script with its own children. For those there is the guardian: a child process that only waits
/// for the end of a pipe.
///
///   launcher ---- lifeline (pipe) ----> guardian
///   ranks    -- their group's number -^
///
/// The kernel closes the launcher's end when the launcher dies, however it dies. Then the guardian
/// kills every process group that it was told of and removes the job's folder.
class Guardian {
 public:
  /// Forks the guardian. `folder` holds at most one file, `folder`/rendezvous.
  explicit Guardian(const std::string& folder);

  /// Dismisses it. The caller has ended all ranks before.
  ~Guardian();

  /// A rank writes its process group's number (pid_t) here before it becomes the program. Closed on
  /// exec.
  int lifeline() const { return lifeline_.get(); }

 private:
  dist::Descriptor lifeline_;
  pid_t pid_ = -1;
};

/// Removes the rendezvous socket and the folder it lies in, if they exist. Async-signal-safe.
void remove_job_folder(const char* folder, const char* socket) noexcept;

}  // namespace lockstep::launch
