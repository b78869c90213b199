#include "lockstep/launch/launch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>

#include "lockstep/core/error.h"
#include "lockstep/launch/launcher.h"

namespace lockstep::launch {

using dist::Seconds;

static bool helped_by_restart(const JobResult& result) {
  return (result.cause == Cause::killed || result.cause == Cause::failed ||
          result.cause == Cause::consequence) &&
         result.exit_code != 2;
}

int run_ranks(const LaunchOptions& options, const std::vector<std::string>& command) {
  check<UsageError>(options.ranks >= 1, "[launch] the number of ranks must be at least 1, not {}",
                    options.ranks);
  check<UsageError>(!command.empty(), "[launch] no program to start");
  check<UsageError>(options.grace >= Seconds(0) && options.grace <= longest_grace,
                    "[launch] the grace period must be in 0..{} s, not {} s", longest_grace.count(),
                    options.grace.count());
  check<UsageError>(options.restarts >= 0, "[launch] the number of restarts is {}",
                    options.restarts);
  check<UsageError>(options.restarts == 0 || options.nodes.count == 1,
                    "[launch] restarts are for a job on one machine");
  check<UsageError>(options.respawn >= 0, "[launch] the number of ranks to replace is {}",
                    options.respawn);
  check<UsageError>(options.survive || options.respawn == 0,
                    "[launch] {} ranks are to be replaced in a job that ends with the first",
                    options.respawn);
  for (int restart = 0;; ++restart) {
    Launcher launcher(options, command, restart);
    launcher.start();
    const JobResult result = launcher.run();
    if (restart == options.restarts || !helped_by_restart(result)) return result.exit_code;
    dist::write_all(STDERR_FILENO,
                    fmt::format("restart {} of {}\n", restart + 1, options.restarts));
  }
}

int run_this_program(const LaunchOptions& options, int argc, const char* const* argv) {
  std::vector<std::string> command{std::filesystem::read_symlink("/proc/self/exe")};
  command.insert(command.end(), argv + 1, argv + argc);
  return run_ranks(options, command);
}

}  // namespace lockstep::launch
