// facts_build: what the build for GPUs says of the kernels, without running one. Run by ctest in
// such builds alone.
#include "lockstep/tools/facts/build.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <regex>
#include <set>

#include "facts/source_kernels.h"
#include "lockstep/tools/facts/document.h"
#include "lockstep/tools/facts/kernel_list.h"
#include "lockstep/tools/facts/text.h"

using namespace lockstep::facts;

namespace {

const std::filesystem::path root = LOCKSTEP_SOURCE_DIR;

const Build& build() {
  static const Build result = read_build(LOCKSTEP_BINARY_DIR, root);
  return result;
}

bool for_hopper() { return std::ranges::count(build().architectures, "sm_90a") > 0; }

/// An instantiation that is allowed what others are not. The pattern is searched in its name.
struct Exception {
  const char* pattern;
  const char* reason;
};

const std::vector<Exception> may_spill = {
    {"^unary_backward_kernel<double, Gelu>", "erf and exp of f64, for gradient checks alone"},
};

const std::vector<Exception> may_load_less = {
    {"_kernel<(float|double), 1\\b", "for rows whose length is no multiple of 16 bytes"},
    {"_kernel<\\w+<(float|double), 1>", "the same, where elements are read by a type of their own"},
    {"_kernel<(Kept|RowLosses)<", "reads what kernels before it kept: one value per block or row"},
    {"^gemm_(vectorized|warp_tile)_kernel<false>", "for rows that are not aligned"},
};

bool is_excepted(const Kernel& kernel, const std::vector<Exception>& exceptions) {
  return std::ranges::any_of(exceptions, [&](const Exception& exception) {
    return std::regex_search(kernel.name, std::regex(exception.pattern));
  });
}

std::string describe(const Kernel& kernel) {
  return fmt::format("{}: {} for {}", kernel.source, kernel.name, kernel.architecture);
}

}  // namespace

TEST_CASE("build: it holds every kernel of the sources" * doctest::skip()) {
  std::set<std::string> built;
  for (const Kernel& kernel : build().kernels) built.insert(kernel.base());
  std::map<std::string, bool> hopper;
  for (const ListedKernel& kernel : read_list(root)) hopper[kernel.name] = kernel.hopper;
  for (const SourceKernel& kernel : find_kernels(root)) {
    CAPTURE(kernel.name);
    CHECK(built.count(kernel.name) == (for_hopper() || !hopper[kernel.name]));
  }
}

TEST_CASE("build: no kernel spills registers" * doctest::skip()) {
  for (const Kernel& kernel : build().kernels) {
    INFO(describe(kernel), " spills ", kernel.spills, " bytes");
    CHECK((kernel.spills == 0 || is_excepted(kernel, may_spill)));
  }
}

TEST_CASE("build: kernels have the instructions that their comments claim" * doctest::skip()) {
  struct Claim {
    std::string phrase;
    bool Instructions::*member;
    const std::vector<Exception>& exceptions;
  };
  const std::vector<Exception> none;
  const Claim claims[] = {{"16-byte loads", &Instructions::loads_16, may_load_less},
                          {"mma", &Instructions::mma, none},
                          {"wgmma", &Instructions::wgmma, none},
                          {"TMA", &Instructions::tma, none}};
  std::map<std::string, SourceKernel> sources;
  for (const SourceKernel& kernel : find_kernels(root)) sources[kernel.name] = kernel;
  std::map<std::string, int> claimed;
  for (const Kernel& kernel : build().kernels)
    for (const Claim& claim : claims) {
      if (!sources[kernel.base()].claims(claim.phrase)) continue;
      if (is_excepted(kernel, claim.exceptions)) continue;
      ++claimed[claim.phrase];
      INFO(describe(kernel), " has no ", claim.phrase);
      CHECK(kernel.instructions.*claim.member);
    }
  // Else a comment that lost its words would pass.
  for (const char* phrase : {"16-byte loads", "mma"}) CHECK(claimed[phrase] > 0);
  for (const char* phrase : {"wgmma", "TMA"}) CHECK((claimed[phrase] > 0) == for_hopper());
}

TEST_CASE("build: docs/kernels.md is up to date" * doctest::skip()) {
  REQUIRE_MESSAGE(std::filesystem::exists(root / "docs/kernels.md"), "./lockstep facts writes it");
  const std::string stored = read_file(root / "docs/kernels.md");
  if (stored.find("\n" + made_by(build()) + "\n") == std::string::npos) {
    MESSAGE("skipped: docs/kernels.md is not of ", made_by(build()));
    return;
  }
  const std::string fresh = document(build(), read_list(root));
  const auto before = lines_of(stored), now = lines_of(fresh);
  for (std::size_t i = 0; i < std::max(before.size(), now.size()); ++i) {
    INFO("line ", i + 1, "; ./lockstep facts writes it anew");
    REQUIRE(std::string(i < before.size() ? before[i] : "") ==
            std::string(i < now.size() ? now[i] : ""));
  }
}
