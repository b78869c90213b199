#pragma once
/// One place for how a figure is written.

#include <string>
#include <vector>

#include "lockstep/tools/counts/counted.h"

namespace lockstep::counts {

/// "16.00 (100 %)": sectors per request, and how many of them would do. Empty without requests.
std::string sectors(const Sum& sum);
/// "2.00 (1.00)": wavefronts per request, and the fewest. Empty without requests.
std::string wavefronts(const Sum& sum);

constexpr std::size_t table_columns = 15;
using Cells = std::vector<std::string>;
const Cells& headings_of_table();
/// Of each launch.
std::vector<Cells> rows_of(const Counted& counted);

}  // namespace lockstep::counts
