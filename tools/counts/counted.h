#pragma once
/// Runs problems in the simulator and counts what their kernels do (simt/counters/counters.h).

#include <string>
#include <vector>

#include "lockstep/simt/counters/counters.h"
#include "lockstep/tools/counts/problem.h"

namespace lockstep::counts {

using simt::counters::Class;
using simt::counters::Launch;
using simt::counters::Sum;

struct Counted {
  Problem problem;
  std::uint64_t fewest_read = 0, fewest_written = 0;  ///< bytes, as those of Work
  std::vector<Launch> launches;

  /// Bytes of DRAM of all launches together, in units of the fewest.
  double excess() const;
};

/// Counts all of them on a simulated Hopper GPU. Throws DeviceError in a build that cannot count,
/// or where a kernel fails.
std::vector<Counted> count(const std::vector<Problem>& problems);

/// "softmax_kernel" of "void lockstep::...::softmax_kernel<float, 4, 2, false>(...)".
std::string short_name(const std::string& kernel);

}  // namespace lockstep::counts
