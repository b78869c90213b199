// --version: every program answers with one line and does nothing else.

#include "lockstep/version.h"

#include <doctest/doctest.h>
#include <fmt/core.h>

#include "support/program.h"

using namespace lockstep::test;

TEST_CASE("every program says its version") {
  const std::string expected = fmt::format("lockstep {}\n", lockstep::version());
  CHECK(expected.starts_with("lockstep 0."));
  for (const std::string program :
       {LOCKSTEP_SOURCE_DIR "/lockstep", LOCKSTEP_BIN_DIR "/train_mlp",
        LOCKSTEP_BIN_DIR "/lockstep-run", LOCKSTEP_BIN_DIR "/ddp_concepts",
        LOCKSTEP_BIN_DIR "/stragglers", LOCKSTEP_BIN_DIR "/bench_step",
        LOCKSTEP_BIN_DIR "/bench_functions", LOCKSTEP_BIN_DIR "/bench_kernels",
        LOCKSTEP_BIN_DIR "/bench_allreduce"}) {
    CAPTURE(program);
    const Ended ended = run({program, "--version"});
    CHECK(ended.code == 0);
    CHECK(ended.out == expected);
    CHECK(ended.err.empty());
  }
}
