#pragma once
/// One step of all ranks, drawn in a terminal.

#include <string>
#include <vector>

#include "lockstep/tools/trace/trace_file.h"

namespace lockstep::traces {

/// Per rank a line for its thread, one for what it sends while it computes, and one per bucket. All
/// begin when the first rank's backward does:
///
///   rank 0  |bbbbbbbbmbbbbbbbbmmwwww|      f, b, o: forward, backward, optimizer; m moves bytes,
///                                          w waits
///   bucket 0|      r===========|           r ready, - waits for its turn, = in flight
///   bucket 1|                r--====|
///
/// `number`: of the step, from 1 on; 0: the one of median length. Throws UsageError if there is no
/// such step; DataError as steps_of.
std::string timeline(const std::vector<RankTrace>& traces, int number, int width);

}  // namespace lockstep::traces
