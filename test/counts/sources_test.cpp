// What kernels' files, docs/counters.md and docs/ladder/ state of their counters is what is counted
// now, and docs/predictions.md what follows from it.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/core/error.h"
#include "lockstep/core/system/atomic_file.h"
#include "lockstep/tools/counts/predicted.h"
#include "lockstep/tools/counts/text.h"
#include "lockstep/tools/facts/kernel_list.h"
#include "lockstep/tools/facts/text.h"
#include "support/temporary_folder.h"

using namespace lockstep;
using namespace lockstep::counts;

namespace {

const std::filesystem::path root = LOCKSTEP_SOURCE_DIR;

const std::vector<Counted>& all() {
  static const std::vector<Counted> counted = count(all_problems());
  return counted;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

void check_that_every_kernel_is_counted() {
  std::set<std::string> seen;
  for (const Counted& counted : all())
    for (const Launch& launch : counted.launches) seen.insert(short_name(launch.kernel));
  for (const facts::ListedKernel& kernel : facts::read_list(root)) {
    CAPTURE(kernel.name);
    CHECK(seen.contains(kernel.name));
  }
}

void check_statements() {
  for (const auto& [source, statement] : statements(all())) {
    const std::string stated = joined(stated_in(facts::read_file(root / source)));
    INFO(source, " has to state (./lockstep count --write):\n", joined(statement));
    CHECK(stated == joined(statement));
  }
}

void check_document(const std::string& name, const std::string& fresh) {
  const std::string stored = facts::read_file(root / "docs" / name);
  const auto before = facts::lines_of(stored), now = facts::lines_of(fresh);
  for (std::size_t i = 0; i < std::max(before.size(), now.size()); ++i) {
    INFO(name, ", line ", i + 1, "; ./lockstep count --write writes it anew");
    REQUIRE(std::string(i < before.size() ? before[i] : "") ==
            std::string(i < now.size() ? now[i] : ""));
  }
}

/// The pictures and the tables of the book of the ladder.
void check_ladder() {
  if (std::system("command -v python3 > /dev/null") != 0) {
    MESSAGE("skipped: the pictures of docs/ladder, for there is no python3");
    return;
  }
  std::vector<Counted> shown;
  for (const Counted& counted : all())
    for (const char* name : {"gemm_", "sum", "argmax", "softmax"})
      if (counted.problem.name.starts_with(name)) shown.push_back(counted);
  const test::TemporaryFolder folder;
  write_file(folder / "trace.json", trace_of(shown).dump());
  const std::string draw = "python3 '" + (root / "docs/ladder/draw.py").string() + "' --check '" +
                           folder / "trace.json" + "' 2> '" + folder / "log" + "'";
  const bool current = std::system(draw.c_str()) == 0;
  INFO(facts::read_file(folder / "log"));
  CHECK(current);
}

/// A product of 256 x 256 x 64 on wide tiles is 4 warpgroups by 4 wgmmas of 64 x 256 x 16, each of
/// which reads 64 + 256 rows of 32 bytes.
void check_operands_of_wgmma() {
  int seen = 0;
  for (const Counted& counted : all())
    if (counted.problem.name == "gemm_11_hopper_bf16_bf16_wide") {
      CHECK(counted.launches.at(0).operand_bytes == 4 * 4 * (64 + 256) * 32);
      ++seen;
    }
  CHECK(seen == 3);
}

}  // namespace

// One case, which counts once: it takes seconds.
TEST_CASE("counts: what kernels' files and documents state is what is counted") {
  check_that_every_kernel_is_counted();
  check_statements();
  check_operands_of_wgmma();
  check_ladder();
  check_document("counters.md", document(all()));
  check_document(
      "predictions.md",
      predict::document(softmax_readings(all()), facts::read_file(root / "docs/benchmarks.md")));
}
