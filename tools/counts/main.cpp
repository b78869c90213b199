// kernel_counts [NAME...]: counts what kernels do to memory, in the simulator (docs/counters.md).
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "lockstep/core/error.h"
#include "lockstep/core/system/atomic_file.h"
#include "lockstep/launch/report.h"
#include "lockstep/tools/cli.h"
#include "lockstep/tools/counts/text.h"
#include "lockstep/tools/facts/text.h"

namespace {

using namespace lockstep;

void write(const std::vector<counts::Counted>& all) {
  const std::filesystem::path root = LOCKSTEP_SOURCE_DIR;
  for (const auto& [source, statement] : counts::statements(all))
    write_file(root / source, counts::with_statement(facts::read_file(root / source), statement));
  write_file(root / "docs/counters.md", counts::document(all));
}

int run(int argc, char** argv) {
  std::vector<std::string> names;
  std::string json, trace;
  bool lines = false, to_sources = false;
  cli::App app("Counts what kernels do to memory, in the simulator.", "lockstep count");
  app.add_option("names", names, "operations, as in softmax or 'gemm*' (default: all)");
  app.add_option("--json", json, "also write all figures to this file");
  app.add_option("--trace", trace, "also write to this file which lane accesses what");
  app.add_flag("--lines", lines, "also name the lines of sources that waste something");
  app.add_flag("--write", to_sources, "write docs/counters.md and the comments of kernels' files");
  if (!app.parse(argc, argv)) return 0;
  check<UsageError>(!to_sources || names.empty(), "--write takes no names: it writes of all");
  cli::check_writable("--json", json);
  cli::check_writable("--trace", trace);
  const std::vector<counts::Counted> all = counts::count(counts::chosen(names));
  fmt::print("{}\n", counts::table(all));
  if (lines) fmt::print("{}", counts::wasteful_lines(all));
  if (!json.empty()) cli::write_json(json, counts::to_json(all));
  if (!trace.empty()) cli::write_json(trace, counts::trace_of(all));
  if (to_sources) write(all);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return run(argc, argv); });
}
