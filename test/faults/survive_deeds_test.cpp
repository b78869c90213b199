// A surviving job in which ranks hang, leave or are killed at moments of their choice: what is
// lost is named, and the others end with the bits of a run that nobody has disturbed.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "support/expect.h"
#include "support/program.h"
#include "support/temporary_folder.h"

using namespace lockstep::test;

namespace {

/// `survivor` with this plan on four ranks, which have to end well.
Ended survive_deeds(const std::string& plan) {
  const TemporaryFolder folder;
  return run({LOCKSTEP_BIN_DIR "/lockstep-run", "-n", "4", "--survive",
              LOCKSTEP_BIN_DIR "/survivor", plan, folder / "checkpoint"});
}

void check_bits(const Ended& ended) {
  static const std::string undisturbed = survive_deeds("none").out;
  INFO(ended.err);
  CHECK(ended.code == 0);
  CHECK(!undisturbed.empty());
  CHECK(ended.out.substr(0, 64) == undisturbed.substr(0, 64));
}

}  // namespace

TEST_CASE("survive: a rank that loops is lost, and its watchdog does not end the others") {
  for (const char* plan : {"1:loop@step", "0:loop@step,2:kill@step", "1:kill@step,2:loop@step",
                           "0:kill@step,3:loop@step,1:kill@step", "1:loop@step,2:stop@step"}) {
    CAPTURE(plan);
    const Ended ended = survive_deeds(plan);
    check_bits(ended);
    for (int rank = 0; rank < 4; ++rank) {
      const bool hung = contains(plan, fmt::format("{}:loop", rank)) ||
                        contains(plan, fmt::format("{}:stop", rank));
      const bool killed = contains(plan, fmt::format("{}:kill", rank));
      const bool named = contains(ended.err, fmt::format("rank {} hangs and was killed", rank)) ||
                         contains(ended.err, fmt::format("rank {} is missing and was", rank));
      CHECK(named == hung);
      CHECK(contains(ended.err, fmt::format("rank {} was killed", rank)) == killed);
    }
  }
}
