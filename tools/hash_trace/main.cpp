// `./lockstep diff A B`: the first result that two runs do not have in common.

#include <fmt/format.h>

#include <cstdio>

#include "lockstep/launch/report.h"
#include "lockstep/tools/cli.h"
#include "lockstep/tools/hash_trace/compare.h"

namespace {

using namespace lockstep;

int run(int argc, const char* const* argv) {
  cli::App app("Names the first result that two runs do not have in common", "lockstep diff");
  app.footer(
      "The exit code is 0 if both runs came to their end and all that can be compared is "
      "equal, 1 if\nnot, 2 if a file cannot be read.");
  std::string a, b;
  app.add_option("A", a, "A file that train --hash-trace has written").required();
  app.add_option("B", b, "Another one; their runs may have other numbers of ranks").required();
  if (!app.parse(argc, argv)) return 0;
  const hashes::Comparison result = hashes::compare(a, b);
  fmt::print("{}", result.text);
  return result.equal ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return run(argc, argv); });
}
