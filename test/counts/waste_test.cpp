// Memory-bound operations move what they must, and no more: a rule for all that is counted.
#include "lockstep/tools/counts/waste.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

namespace lockstep::counts {
namespace {

using Items = std::vector<std::string>;

/// One kernel of an operation that needs 1024 bytes, and moves so many.
Counted moving(std::uint64_t bytes, Class what, const Sum& sum) {
  Counted counted;
  counted.fewest_read = 1000, counted.fewest_written = 24;
  Launch launch{.kernel = "void some_kernel<float>(float*)", .read = bytes};
  launch.sums[static_cast<int>(what)] = sum;
  counted.launches.push_back(launch);
  return counted;
}

/// All that is wasted has an exception, and all exceptions for these are needed.
void check_that_nothing_is_wasted(const std::vector<Problem>& problems) {
  for (const Counted& counted : count(problems)) {
    CAPTURE(counted.problem.name);
    CAPTURE(counted.problem.size);
    const Items items = waste(counted);
    std::set<const WasteException*> needed;
    for (const std::string& item : items) {
      for (const WasteException& one : waste_exceptions())
        if (is_for(one, counted.problem, item)) needed.insert(&one);
      CHECK_MESSAGE(
          std::ranges::any_of(needed,
                              [&](const auto* one) { return is_for(*one, counted.problem, item); }),
          item);
    }
    for (const WasteException& one : waste_exceptions())
      if (is_for(one, counted.problem, one.what))
        CHECK_MESSAGE(needed.contains(&one), one.what,
                      ": an exception that is not needed any more");
  }
}

}  // namespace

TEST_CASE("counts: what is called waste") {
  const Sum half{.requests = 1, .sectors = 8, .fewest_sectors = 4};
  const Sum nearly{.requests = 1, .sectors = 100, .fewest_sectors = 95};
  const Sum conflict{.requests = 2, .wavefronts = 4, .fewest_wavefronts = 2};
  CHECK(waste(moving(1024, Class::global_load, half)) == Items{"some_kernel: loads 8.00 (50 %)"});
  CHECK(waste(moving(1024, Class::copy_load, half)) == Items{"some_kernel: cp.async 8.00 (50 %)"});
  CHECK(waste(moving(1024, Class::global_store, nearly)).empty());
  CHECK(waste(moving(1024, Class::shared_store, conflict)) ==
        Items{"some_kernel: shared stores 2.00 (1.00)"});
  CHECK(waste(moving(1054, Class::global_load, nearly)).empty());
  CHECK(waste(moving(2048, Class::global_load, {})) == Items{"DRAM 2.00 of the fewest"});
  Counted copying = moving(1024, Class::copy_load, nearly);
  copying.launches[0].copied_4 = 4;
  CHECK(waste(copying) == Items{"some_kernel: copies of 4 bytes"});
}

TEST_CASE("counts: every exception is for an operation that is counted") {
  const std::vector<Problem> problems = memory_bound_problems();
  for (const WasteException& one : waste_exceptions()) {
    CAPTURE(one.operation);
    CHECK(std::ranges::any_of(
        problems, [&](const Problem& problem) { return is_for(one, problem, one.what); }));
  }
}

TEST_CASE("counts: elementwise kernels, transposes and indices waste nothing") {
  check_that_nothing_is_wasted(elementwise_problems());
}

TEST_CASE("counts: kernels over rows and columns waste nothing") {
  check_that_nothing_is_wasted(row_problems());
}

TEST_CASE("counts: random numbers, updates and folds waste nothing") {
  check_that_nothing_is_wasted(update_problems());
}

TEST_CASE("counts: tiles for tensor cores are copied 16 bytes at a time") {
  for (const Counted& counted : count(chosen({"gemm_09_*", "gemm_10_*"})))
    for (const Launch& launch : counted.launches) CHECK(launch.copied_4 == 0);
}

}  // namespace lockstep::counts
