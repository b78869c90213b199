// How counted figures are written.
#include "lockstep/tools/counts/text.h"

#include <doctest/doctest.h>

#include "lockstep/core/error.h"
#include "lockstep/tools/counts/cells.h"

using namespace lockstep::counts;

TEST_CASE("counts: figures per request") {
  const Sum sum{.requests = 4,
                .bytes = 512,
                .sectors = 128,
                .fewest_sectors = 16,
                .wavefronts = 10,
                .fewest_wavefronts = 4};
  CHECK(sectors(sum) == "32.00 (12 %)");
  CHECK(wavefronts(sum) == "2.50 (1.00)");
  CHECK(sectors({}) == "");
  CHECK(wavefronts({}) == "");
}

TEST_CASE("counts: the name of a kernel without all that is round it") {
  CHECK(short_name("void lockstep::kernels::(anonymous namespace)::softmax_kernel<float, 4, "
                   "false>(long, float*)") == "softmax_kernel");
  CHECK(short_name("lockstep::fold_kernel(int)") == "fold_kernel");
  CHECK(short_name("0x1234") == "0x1234");
}

TEST_CASE("counts: a statement is put behind a file's first comment, or in its own place") {
  const std::vector<std::string> old = {"// Counted (./lockstep count --write; docs/counters.md):",
                                        "//   softmax 64x1024: loads 1.00 (100 %)"};
  const std::vector<std::string> fresh = {old[0], "//   softmax 64x1024: loads 2.00 (50 %)"};
  const std::string with_old = "// Softmax.\n//\n" + old[0] + "\n" + old[1] + "\n#include <a>\n";
  CHECK(with_statement("// Softmax.\n#include <a>\n", old) == with_old);
  CHECK(stated_in(with_old) == old);
  CHECK(stated_in("// Softmax.\n").empty());
  const std::string with_new = with_statement(with_old, fresh);
  CHECK(stated_in(with_new) == fresh);
  CHECK(with_statement(with_new, old) == with_old);
  CHECK(with_statement("#include <a>\n", old) == old[0] + "\n" + old[1] + "\n\n#include <a>\n");
}

TEST_CASE("counts: operations are chosen by patterns") {
  CHECK(chosen({}).size() == all_problems().size());
  for (const Problem& problem : chosen({"gemm_0*"})) CHECK(problem.name.starts_with("gemm_0"));
  CHECK(chosen({"softmax", "sum"}).size() == 5);
  CHECK_THROWS_WITH_AS(chosen({"softmux"}), doctest::Contains("no kernel is named 'softmux'"),
                       lockstep::UsageError);
}
