#pragma once
/// How far the ranks' clocks are apart. Machines count their time from different moments.
///
/// In an exchange no rank can leave before every rank has come:
///
///     rank 0   ....came=======left.......      left_0 >= came_r  and
///     rank r   ........came====left......      left_r >= came_0, all by one clock
///
/// If rank r's clock is d ahead of rank 0's, then came_r - left_0 <= d <= left_r - came_0. Each
/// round gives such bounds; the tightest of them hold. (It is the bound of NTP, RFC 5905 section 8,
/// for an exchange in which all take part.)

#include <cstdint>
#include <vector>

namespace lockstep::dist {

class Communicator;

/// In nanoseconds. A clock that may be rank 0's own, by the bounds, is taken for that: offset 0.
struct ClockOffset {
  std::int64_t offset = 0;       ///< of the rank's clock, ahead of rank 0's
  std::int64_t uncertainty = 0;  ///< the true offset is at most so far from it
};

/// By rank. `came[k][r]`: when rank r came to round k, by its own clock; `left` likewise. At least
/// one round. A pure function.
std::vector<ClockOffset> clock_offsets(const std::vector<std::vector<std::int64_t>>& came,
                                       const std::vector<std::vector<std::int64_t>>& left);

/// Measures them in a few rounds. The same on all ranks. Collective.
std::vector<ClockOffset> measure_clocks(Communicator& communicator);

}  // namespace lockstep::dist
