#pragma once
/// A folder for what a program needs while it runs. It goes away with its object, and also if
/// SIGINT, SIGTERM or SIGHUP ends the process; SIGKILL leaves it.
///
/// It is made in $TMPDIR, else in /tmp, with mode 0700. Throws DataError if that is not possible.
/// Thread-safety: a process has one at a time.

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>

#include "lockstep/core/error.h"
#include "lockstep/core/system/signals_blocked.h"

namespace lockstep::cli {

class TemporaryFolder {
 public:
  /// "lockstep-overlap" makes /tmp/lockstep-overlap-Ab3dE6.
  explicit TemporaryFolder(std::string_view name)
      : path_(fmt::format("{}/{}-XXXXXX", std::filesystem::temp_directory_path().string(), name)) {
    const SignalsBlocked blocked;  // until a handler knows the folder
    const bool made = ::mkdtemp(path_.data()) != nullptr;
    check<DataError>(made, "[folder] cannot make '{}': {}", path_, std::strerror(errno));
    removed_by_signal = path_.c_str();
    replace_handlers(SIG_DFL, remove_and_end);
  }
  ~TemporaryFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
    replace_handlers(remove_and_end, SIG_DFL);
    removed_by_signal = nullptr;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  static constexpr int signals[] = {SIGINT, SIGTERM, SIGHUP};
  static inline std::atomic<const char*> removed_by_signal = nullptr;

  /// A signal that is ignored, or that others handle, remains so.
  static void replace_handlers(void (*from)(int), void (*to)(int)) {
    for (const int signal : signals)
      if (const auto before = std::signal(signal, to); before != from) std::signal(signal, before);
  }

  /// A handler may make few calls, so that `rm` has to do the work.
  static void remove_and_end(int signal) {
    if (const char* const path = removed_by_signal) {
      const pid_t child = ::_Fork();
      if (child == 0) {
        ::execl("/bin/rm", "rm", "-rf", "--", path, nullptr);
        ::_exit(127);
      }
      if (child > 0) ::waitpid(child, nullptr, 0);
    }
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }

  std::string path_;
};

}  // namespace lockstep::cli
