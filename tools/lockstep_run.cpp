// lockstep-run -n N [--prefix] PROGRAM ARGS...: starts N ranks of a program on this machine.
// See dist/launch.h for what a rank finds in its environment and for what happens when one fails.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/dist/environment.h"
#include "lockstep/dist/launch.h"
#include "lockstep/dist/report.h"

namespace {

using namespace lockstep;

int run(int argc, char** argv) {
  CLI::App app{
      "lockstep-run -n RANKS [--prefix] PROGRAM [ARGUMENTS...]\n"
      "Starts the ranks of a distributed job on this machine and ends them together."};
  dist::LaunchOptions options;
  app.name("lockstep-run");
  app.add_option("-n,--ranks", options.ranks, "Number of ranks (processes)")
      ->required()
      ->check(CLI::Range(1, dist::max_ranks));
  app.add_flag("--prefix", options.prefix, "Put [rank] in front of every line of output");
  app.prefix_command();  // from the program's name on, nothing is ours
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return 0;
  } catch (const CLI::ParseError& error) {
    fail<UsageError>("lockstep-run: {} (see lockstep-run --help)", error.what());
  }
  std::vector<std::string> command = app.remaining();
  check<UsageError>(command.empty() || command[0] == "--" || !command[0].starts_with('-'),
                    "lockstep-run: unknown option '{}' (see lockstep-run --help)",
                    command.empty() ? "" : command[0]);
  if (!command.empty() && command[0] == "--") command.erase(command.begin());
  check<UsageError>(!command.empty(),
                    "lockstep-run: no program to start (see lockstep-run --help)");
  return dist::launch(options, command);
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return run(argc, argv); });
}
