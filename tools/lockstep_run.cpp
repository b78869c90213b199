// lockstep-run -n N [--prefix] PROGRAM ARGS...: starts N ranks of a program on this machine; with
// --nnodes on each of several. See launch/launch.h for what a rank finds in its environment and for
// what happens when one fails, launch/nodes.h for how machines come together.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <string>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/dist/rendezvous/environment.h"
#include "lockstep/launch/launch.h"
#include "lockstep/launch/report.h"
#include "lockstep/tools/option_values.h"
#include "lockstep/version.h"

namespace {

using namespace lockstep;

/// The program and its arguments, checked: what the command line has after our own options.
std::vector<std::string> command_of(const CLI::App& app) {
  std::vector<std::string> command = app.remaining();
  check<UsageError>(command.empty() || command[0] == "--" || !command[0].starts_with('-'),
                    "lockstep-run: unknown option '{}' (see lockstep-run --help)",
                    command.empty() ? "" : command[0]);
  if (!command.empty() && command[0] == "--") command.erase(command.begin());
  check<UsageError>(!command.empty(),
                    "lockstep-run: no program to start (see lockstep-run --help)");
  return command;
}

/// The command line, with mpirun's `-np 2` and `--np 2` as `-n 2`. (CLI11 would take `-np` for
/// `-n p`.)
std::vector<std::string> in_own_words(const CLI::App& app, int argc, char** argv) {
  std::vector<std::string> words(argv, argv + argc);
  for (std::size_t i = 1; i < words.size() && words[i].starts_with('-') && words[i] != "--"; ++i) {
    const std::size_t equals = words[i].find('=');
    const std::string name = words[i].substr(0, equals);
    if (name == "-np" || name == "--np") words[i].replace(0, name.size(), "--ranks");
    const CLI::Option* option = app.get_option_no_throw(words[i].substr(0, words[i].find('=')));
    if (option && option->get_items_expected_max() > 0 && equals == std::string::npos) ++i;
  }
  return words;
}

/// Not by CLI11's envname: a variable that is set for other jobs is no error on a single machine,
/// as the option is.
void take_variable(const char* name, std::string& option) {
  if (const char* value = std::getenv(name); value && option.empty()) option = value;
}

int run(int argc, char** argv) {
  CLI::App app{
      "lockstep-run -n RANKS [--prefix] PROGRAM [ARGUMENTS...]\n"
      "Starts the ranks of a distributed job on this machine and ends them together.\n"
      "If a rank fails, prints one line that begins with the rank that is to blame, and exits\n"
      "with that rank's code. Rank 0 reads this stdin and writes to this stderr; that of the\n"
      "other ranks is kept, and its end is printed if such a rank fails without reporting an\n"
      "error (with --prefix, all of it at once).\n\n"
      "On several machines, on each of them, with its own number for --node-rank:\n"
      "lockstep-run -n RANKS --nnodes 2 --node-rank 0 --rendezvous HOST:PORT \\\n"
      "  --secret-file FILE PROGRAM [ARGUMENTS...]\n"
      "Without a secret file all who can reach HOST:PORT can join: for a trusted network only."};
  launch::LaunchOptions options;
  launch::NodesOptions& nodes = options.nodes;
  const CLI::Validator whole = cli::validators::whole_number<int>();
  double timeout = nodes.timeout.count(), grace = options.grace.count();
  app.name("lockstep-run");
  app.add_option("-n,--ranks", options.ranks,
                 "Number of ranks (processes) on this machine; -np, as mpirun's, is the same")
      ->required()
      ->check(whole)
      ->check(CLI::Range(1, dist::max_ranks));
  app.add_flag("--verbose", options.verbose,
               "Print the process id of each rank at the start (for gdb -p)");
  app.add_flag("--prefix", options.prefix, "Put [rank] in front of every line of output");
  CLI::Option* several = app.add_option("--nnodes", nodes.count, "Number of machines (1)")
                             ->check(whole)
                             ->check(CLI::Range(1, dist::max_ranks));
  CLI::Option* node = app.add_option("--node-rank", nodes.node, "Number of this machine: 0, 1, ...")
                          ->needs(several)
                          ->check(whole)
                          ->check(CLI::Range(0, dist::max_ranks - 1));
  app.add_option("--rendezvous", nodes.rendezvous,
                 "HOST:PORT of machine 0, a free port: where the launchers meet")
      ->needs(several);
  app.add_option("--interface", nodes.interface,
                 "Name or address of the network interface at which the ranks of this machine are "
                 "reached ($LOCKSTEP_INTERFACE, else the one that leads to the rendezvous)")
      ->needs(several);
  app.add_option("--secret-file", nodes.secret_file,
                 "File of mode 0600 with 32 random bytes or more, the same on all machines "
                 "($LOCKSTEP_SECRET_FILE)")
      ->needs(several);
  app.add_option(
         "--timeout", timeout,
         "Seconds until all machines must have joined, and after which a silent one is lost "
         "(60)")
      ->needs(several)
      ->check(cli::validators::number());
  app.add_option("--grace", grace,
                 "Seconds that ranks have to end after SIGTERM, or a signal passed on, before "
                 "SIGKILL (2); the same on all machines")
      ->check(cli::validators::number())
      ->check(CLI::Range(0.0, launch::longest_grace.count()));
  app.add_option("--restarts", options.restarts,
                 "Start all ranks again after a failure, up to so many times: for programs that go "
                 "on from a checkpoint (0)")
      ->excludes(several)
      ->check(whole);
  CLI::Option* survive =
      app.add_flag("--survive", options.survive,
                   "Go on without ranks that are killed or hang, and let others join (SIGUSR1 adds "
                   "one): for programs that call survive(); the same on all machines");
  app.add_option("--respawn", options.respawn,
                 "Replace so many of those ranks (0); the same on all machines")
      ->needs(survive)
      ->check(whole);
  app.set_version_flag("--version", fmt::format("lockstep {}", version()), "Print the version");
  app.prefix_command();  // from the program's name on, nothing is ours
  const std::vector<std::string> words = in_own_words(app, argc, argv);
  std::vector<const char*> pointers;
  for (const std::string& word : words) pointers.push_back(word.c_str());
  cli::refuse_empty_values(app, argc, pointers.data());
  try {
    app.parse(argc, pointers.data());
  } catch (const CLI::Success& answer) {  // --help, --version
    return app.exit(answer);
  } catch (const CLI::ParseError& error) {
    fail<UsageError>("lockstep-run: {} (see lockstep-run --help)", error.what());
  }
  const std::vector<std::string> command = command_of(app);
  check<UsageError>(nodes.count == 1 || *node, "lockstep-run: --nnodes {} needs --node-rank",
                    nodes.count);
  check<UsageError>(nodes.node < nodes.count,
                    "lockstep-run: --node-rank {} of --nnodes {}: they are numbered from 0",
                    nodes.node, nodes.count);
  check<UsageError>(timeout > 0, "lockstep-run: --timeout must be positive, got {}", timeout);
  nodes.timeout = dist::Seconds(timeout);
  if (*several) {
    take_variable("LOCKSTEP_INTERFACE", nodes.interface);
    take_variable("LOCKSTEP_SECRET_FILE", nodes.secret_file);
  }
  options.grace = dist::Seconds(grace);
  return launch::run_ranks(options, command);
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return run(argc, argv); });
}
