// kernel_facts [--write]: prints docs/kernels.md as the build for GPUs that this program is part of
// would have it, or writes it.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <fstream>

#include "lockstep/core/error.h"
#include "lockstep/dist/report.h"
#include "lockstep/tools/facts/document.h"

namespace {

using namespace lockstep;

int run(int argc, char** argv) {
  CLI::App app{"Prints what the compiler made of every kernel, as docs/kernels.md has it."};
  bool write = false;
  app.name("kernel_facts");
  app.add_flag("--write", write, "Write docs/kernels.md instead");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return 0;
  } catch (const CLI::ParseError& error) {
    fail<UsageError>("kernel_facts: {} (see kernel_facts --help)", error.what());
  }
  const std::filesystem::path root = LOCKSTEP_SOURCE_DIR, build = LOCKSTEP_BINARY_DIR;
  const std::string text = facts::document(facts::read_build(build, root), facts::read_list(root));
  if (write) {
    std::ofstream file(root / "docs/kernels.md", std::ios::binary);
    file << text;
    check<DataError>(file.flush().good(), "kernel_facts: cannot write docs/kernels.md");
  } else {
    fmt::print("{}", text);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return run(argc, argv); });
}
