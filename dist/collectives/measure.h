#pragma once
/// How long a collective takes here, by the communicator's clock (virtual in a simulated world).

#include <algorithm>
#include <vector>

#include "lockstep/dist/collectives/communicator.h"

namespace lockstep::dist {

/// The median of `repetitions` calls, after one that does not count.
template <class Call>
double median_seconds(const Communicator& communicator, int repetitions, Call&& call) {
  std::vector<double> seconds(static_cast<std::size_t>(repetitions));
  call();
  for (double& s : seconds) {
    const Seconds start = communicator.now();
    call();
    s = (communicator.now() - start).count();
  }
  const auto middle = seconds.begin() + repetitions / 2;
  std::ranges::nth_element(seconds, middle);
  return *middle;
}

}  // namespace lockstep::dist
