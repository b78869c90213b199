// A surviving job in which ranks hang, leave or are killed at moments of their choice: what is
// lost is named, and the others end with the bits of a run that nobody has disturbed.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "faults/survivors.h"
#include "support/expect.h"
#include "support/program.h"
#include "support/temporary_folder.h"

using namespace lockstep::test;

namespace {

void check_bits(const Ended& ended) {
  INFO(ended.err);
  CHECK(ended.code == 0);
  CHECK(!undisturbed_deeds().empty());
  CHECK(ended.out.substr(0, 64) == undisturbed_deeds().substr(0, 64));
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

TEST_CASE("survive: who hangs while it writes a checkpoint is lost, and a slow writer is not") {
  for (const char* plan : {"0:stop@save", "0:loop@save", "1:kill@step,0:loop@save",
                           "0:kill@step,1:stop@save,2:kill@step"}) {
    CAPTURE(plan);
    const Ended ended = survive_deeds(plan);
    check_bits(ended);
    const int writer = contains(plan, "1:stop") ? 1 : 0;
    CHECK(contains(ended.err, fmt::format("rank {} hangs and was killed by SIGKILL", writer)));
  }
  const Ended slow = survive_deeds("0:sleep@save");  // for longer than the timeout
  check_bits(slow);
  CHECK(slow.err == "");
}

TEST_CASE("survive: who leaves or hangs after its last collective disturbs nobody") {
  for (const char* plan : {"0:leave@end", "2:leave@end,3:kill@end", "0:stop@end", "3:loop@end",
                           "1:loop@end,2:stop@end"}) {
    CAPTURE(plan);
    const Ended ended = survive_deeds(plan);
    check_bits(ended);
    for (int rank = 0; rank < 4; ++rank) {
      const bool hung = contains(plan, fmt::format("{}:stop", rank)) ||
                        contains(plan, fmt::format("{}:loop", rank));
      CHECK(contains(ended.err, fmt::format("rank {} hangs and was killed", rank)) == hung);
    }
  }
}
