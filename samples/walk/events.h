#pragma once
/// One step of a traced ring, told event by event: what happened, and what the buckets then hold.

#include <string>
#include <vector>

#include "lockstep/tools/trace/trace_file.h"

namespace lockstep::samples {

/// A line for what happened, and below it, if something in them has changed, the buckets of all
/// ranks. Of the steps after the first, number `step` (1, 2, ...). The traces' collectives must be
/// rings whose parts arrive in the bucket itself. Throws DataError if there is no such step.
std::vector<std::string> events_of_step(const std::vector<traces::RankTrace>& traces, int step);

}  // namespace lockstep::samples
