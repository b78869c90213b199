#pragma once
/// Traces as one self-contained HTML page. Its source is in report/.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/tools/trace/trace_file.h"

namespace lockstep::traces {

/// What the page is given: events, packed; the figures of all steps and of each; rank 0's values.
nlohmann::json page_data(const std::vector<RankTrace>& traces);

/// The page. Throws DataError if its source cannot be read, or as steps_of.
std::string page(const std::vector<RankTrace>& traces);

}  // namespace lockstep::traces
