// `./lockstep trace DIR`: what traces amount to, and all ranks in one file for a viewer.

#include <fmt/format.h>

#include "lockstep/core/system/atomic_file.h"
#include "lockstep/launch/report.h"
#include "lockstep/tools/cli.h"
#include "lockstep/tools/trace/steps.h"
#include "lockstep/tools/trace/timeline.h"

namespace {

using namespace lockstep;

// Every event says its rank, so the events of all files need only be put together.
void merge(const std::string& directory, const std::vector<traces::RankTrace>& traces,
           const std::string& path) {
  AtomicFile out(path);
  const auto write = [&](const std::string& text) { out.write(text.data(), text.size()); };
  write("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[");
  std::string before = "\n";
  for (const traces::RankTrace& trace : traces)
    traces::for_each_event(directory, trace.rank, [&](const nlohmann::json& event) {
      write(before + event.dump());
      before = ",\n";
    });
  write("\n]}\n");
  out.commit();
}

int run(int argc, const char* const* argv) {
  cli::App app("Says what the traces of a run amount to", "lockstep trace");
  std::string directory, merged;
  std::optional<int> step;
  int width = 100;
  bool all = true;
  app.add_option("DIR", directory, "The folder that --trace has written").required();
  app.add_flag("--summary", all, "Print the figures of all steps (the default)");
  app.add_option("--step", step, "Draw this step, counted from 1; 0: the one of median length");
  app.add_option("--width", width, "Columns of the drawing (100)");
  app.add_option("--merge", merged, "Write all ranks to one FILE, for ui.perfetto.dev");
  if (!app.parse(argc, argv)) return 0;
  check<UsageError>(width >= 40 && width <= 400, "--width must be in 40..400, got {}", width);
  if (!merged.empty()) traces::check_is_no_trace(directory, merged);
  const auto traces = traces::read_traces(directory);
  // A step that is not there is told before anything is written.
  const std::string drawn = step ? traces::timeline(traces, *step, width) : "";
  if (!merged.empty()) {
    merge(directory, traces, merged);
    fmt::print("wrote {}\n", merged);
  }
  fmt::print("{}", step ? drawn : traces::summary(traces));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return run(argc, argv); });
}
