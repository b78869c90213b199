// What kernels' files and docs/counters.md state of their counters is what is counted now.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "lockstep/core/error.h"
#include "lockstep/tools/counts/text.h"
#include "lockstep/tools/facts/kernel_list.h"
#include "lockstep/tools/facts/text.h"

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

void check_document() {
  const std::string stored = facts::read_file(root / "docs/counters.md"), fresh = document(all());
  const auto before = facts::lines_of(stored), now = facts::lines_of(fresh);
  for (std::size_t i = 0; i < std::max(before.size(), now.size()); ++i) {
    INFO("line ", i + 1, "; ./lockstep count --write writes it anew");
    REQUIRE(std::string(i < before.size() ? before[i] : "") ==
            std::string(i < now.size() ? now[i] : ""));
  }
}

}  // namespace

// One case, which counts once: it takes seconds.
TEST_CASE("counts: what kernels' files and docs/counters.md state is what is counted") {
  check_that_every_kernel_is_counted();
  check_statements();
  check_document();
}
