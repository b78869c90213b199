// `./lockstep report DIR`: the traces of a run as one HTML page, which needs no network.

#include <fmt/format.h>

#include "lockstep/core/system/atomic_file.h"
#include "lockstep/launch/report.h"
#include "lockstep/tools/cli.h"
#include "lockstep/tools/report/page.h"

namespace {

using namespace lockstep;

int run(int argc, const char* const* argv) {
  cli::App app("Turns the traces of a run into one HTML page", "lockstep report");
  std::string directory, out;
  app.add_option("DIR", directory, "The folder that --trace has written").required();
  app.add_option("--out", out, "The page's file (DIR/report.html)");
  if (!app.parse(argc, argv)) return 0;
  if (out.empty()) out = directory + "/report.html";
  traces::check_is_no_trace(directory, out);
  const auto traces = traces::read_traces(directory);
  write_file(out, traces::page(traces));
  fmt::print("wrote {}: open it in a browser\n", out);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return run(argc, argv); });
}
