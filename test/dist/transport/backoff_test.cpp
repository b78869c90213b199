// How a rank waits for others of its machine.

#include "lockstep/dist/transport/backoff.h"

#include <doctest/doctest.h>

namespace lockstep::dist {
namespace {

// On a busy machine each yield takes as long as others compute: hundreds of them take seconds.
TEST_CASE("backoff: who yields for long looks for ranks that are gone meanwhile") {
  const Backoff backoff(available_cores() + 1);  // it does not spin
  for (unsigned round = 0, since = 0; round < 600; ++round) {
    since = backoff.relax(round) ? 0 : since + 1;
    CHECK(since < 20);
  }
  const Backoff alone(1);
  CHECK(alone.spins(0));
  CHECK_FALSE(alone.relax(0));  // a look at the clock takes longer than a spin
}

}  // namespace
}  // namespace lockstep::dist
