// The script ./lockstep, as far as it needs no build: what it says to bad usage.

#include <doctest/doctest.h>

#include "support/program.h"

using namespace lockstep::test;

namespace {
const std::string script = LOCKSTEP_SOURCE_DIR "/lockstep";
}

TEST_CASE("lockstep: help goes to stdout, bad usage to stderr with code 2") {
  for (const char* word : {"help", "--help", "-h"}) {
    const Ended help = run({script, word});
    CHECK(help.code == 0);
    CHECK(help.err.empty());
    CHECK(contains(help.out, "./lockstep COMMAND"));
  }
  const Ended nothing = run({script});
  CHECK(nothing.code == 2);
  CHECK(nothing.out.empty());
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"trian"},
                                             {"bench", "stpe"},
                                             {"sample", "../x"},
                                             {"sample", "nosuch"},
                                             {"test", "--sanitize", "memory"},
                                             {"test", "--only", "dist,../x"},
                                             {"test", "--only", "nosuch"},
                                             {"drill", "nosuch"},
                                             {"drill", "collectives", "--runs", "x"}}) {
    std::vector<std::string> command{script};
    command.insert(command.end(), arguments.begin(), arguments.end());
    const Ended ended = run(command);
    CAPTURE(ended.err);
    CHECK(ended.code == 2);
    CHECK(ended.out.empty());
    CHECK(lines_of(ended.err).size() == 1);
    CHECK(contains(ended.err, "'" + arguments.back() + "'"));
  }
}
