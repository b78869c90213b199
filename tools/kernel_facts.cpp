// kernel_facts [--write]: prints docs/kernels.md as the build for GPUs that this program is part of
// would have it, or writes it.

#include <fmt/format.h>

#include <filesystem>
#include <string_view>

#include "lockstep/core/error.h"
#include "lockstep/core/system/atomic_file.h"
#include "lockstep/launch/report.h"
#include "lockstep/tools/facts/document.h"

namespace {

using namespace lockstep;

int run(int argc, char** argv) {
  const bool write = argc == 2 && std::string_view(argv[1]) == "--write";
  check<UsageError>(argc == 1 || write, "kernel_facts takes --write or nothing");
  const std::filesystem::path root = LOCKSTEP_SOURCE_DIR, build = LOCKSTEP_BINARY_DIR;
  const std::string text = facts::document(facts::read_build(build, root), facts::read_list(root));
  if (write)
    write_file(root / "docs/kernels.md", text);
  else
    fmt::print("{}", text);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return run(argc, argv); });
}
