// kernel_facts [--write]: prints docs/kernels.md as the build for GPUs that this program is part of
// would have it, or writes it.

#include <fmt/format.h>

#include <fstream>
#include <string_view>

#include "lockstep/core/error.h"
#include "lockstep/launch/report.h"
#include "lockstep/tools/facts/document.h"

namespace {

using namespace lockstep;

int run(int argc, char** argv) {
  const bool write = argc == 2 && std::string_view(argv[1]) == "--write";
  check<UsageError>(argc == 1 || write, "kernel_facts takes --write or nothing");
  const std::filesystem::path root = LOCKSTEP_SOURCE_DIR, build = LOCKSTEP_BINARY_DIR;
  const std::string text = facts::document(facts::read_build(build, root), facts::read_list(root));
  if (!write) {
    fmt::print("{}", text);
    return 0;
  }
  std::ofstream file(root / "docs/kernels.md", std::ios::binary);
  file << text;
  check<DataError>(file.flush().good(), "kernel_facts: cannot write docs/kernels.md");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return run(argc, argv); });
}
