#pragma once
/// How a sample starts its ranks, and the options that all samples share.
///
/// A sample starts its own ranks. Run by hand it is the launcher: every rank is a child that runs
/// the same main() with RANK and WORLD_SIZE in its environment (launch/launch.h) or, with
/// `--transport threads`, a thread. Inside another launcher's world (torchrun, mpirun, srun,
/// lockstep-run) it joins that.

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/dist/world/world.h"
#include "lockstep/tools/app.h"
#include "lockstep/tools/device_options.h"

namespace lockstep::samples {

struct RunOptions {
  cli::DeviceOptions device;
  std::optional<int> ranks;  ///< in a launcher's world: absent, or its size
  std::string comm = "auto";
  std::optional<std::string> transport;  ///< shm; tcp on several machines
  double timeout = 60;                   ///< seconds without progress
  bool survive = false;                  ///< go on without ranks that are lost
  int respawn = 0;                       ///< so many of them are replaced
  double grace = 2;                      ///< seconds from SIGTERM for the ranks to SIGKILL
  std::string json;                      ///< where to write a summary; empty: nowhere
};

/// --device, --gemm, --ranks, --comm, --transport, --timeout, --grace, --json. `ranks` describes
/// the default.
void add_options(cli::App& app, RunOptions& options, const std::string& ranks);

/// False after --help, which it has printed. Throws UsageError with one line for anything that
/// makes no sense.
bool parse(cli::App& app, const RunOptions& options, int argc, const char* const* argv);

/// For a sample whose input says how many ranks there are: sets options.ranks. Throws UsageError if
/// --ranks or a launcher's world differs. `source` says what asks for them.
void set_ranks(RunOptions& options, int ranks, std::string_view source);

/// True in the process that starts the ranks and in rank 0, which writes the results: where it
/// should be known before the work, not after it, that a file cannot be written.
bool writes_results();

/// Runs `body` once per rank, in the way that the options and the environment ask for, and returns
/// the exit code. `otherwise` is the number of ranks if neither says one.
int run_ranks(const RunOptions& options, int otherwise, int argc, const char* const* argv,
              const std::function<void(World&)>& body);

}  // namespace lockstep::samples
