// `./lockstep trace DIR`: what traces amount to, and all ranks in one file for a viewer.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <fstream>

#include "lockstep/core/system/atomic_file.h"
#include "lockstep/launch/report.h"
#include "lockstep/tools/cli.h"
#include "lockstep/tools/trace/steps.h"
#include "lockstep/tools/trace/timeline.h"

namespace {

using namespace lockstep;

// Every event says its rank, so the files of the ranks need only be put together.
void merge(const std::string& directory, std::size_t ranks, const std::string& path) {
  AtomicFile out(path);
  for (std::size_t r = 0; r < ranks; ++r) {
    std::ifstream file(fmt::format("{}/rank-{}.json", directory, r));
    std::string line;
    // Between the line that opens the list and the one that closes it; all but the last end in ','.
    while (std::getline(file, line) && line != "\"traceEvents\":[") {
    }
    std::string before = r == 0 ? "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n" : ",";
    for (; std::getline(file, line) && line != "]}"; before.clear()) {
      line = before + line + "\n";
      out.write(line.data(), line.size());
    }
  }
  out.write("]}\n", 3);
  out.commit();
}

int run(int argc, const char* const* argv) {
  CLI::App app("Says what the traces of a run amount to", "lockstep trace");
  std::string directory, merged;
  std::optional<int> step;
  int width = 100;
  bool all = true;
  app.add_option("DIR", directory, "The folder that --trace has written")->required();
  app.add_flag("--summary", all, "Print the figures of all steps (the default)");
  app.add_option("--step", step, "Draw this step, counted from 1; 0: the one of median length");
  app.add_option("--width", width, "Columns of the drawing (100)");
  app.add_option("--merge", merged, "Write all ranks to one FILE, for ui.perfetto.dev");
  if (!cli::parse(app, argc, argv)) return 0;
  check<UsageError>(width >= 40 && width <= 400, "--width must be in 40..400, got {}", width);
  const auto traces = traces::read_traces(directory);
  if (!merged.empty()) {
    merge(directory, traces.size(), merged);
    fmt::print("wrote {}\n", merged);
  }
  if (step)
    fmt::print("{}", traces::timeline(traces, *step, width));
  else
    fmt::print("{}", traces::summary(traces));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return run(argc, argv); });
}
