#pragma once
/// The counted figures as text: a table for terminals and documents, the worst lines, the comments
/// in kernels' files, JSON.

#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lockstep/tools/counts/counted.h"

namespace lockstep::counts {

/// A row for each launch, without the trailing line break.
std::string table(const std::vector<Counted>& all);

/// The lines of sources whose requests cost more sectors or wavefronts than they need to, the worst
/// of each launch first. Empty if there are none.
std::string wasteful_lines(const std::vector<Counted>& all);

/// docs/counters.md.
std::string document(const std::vector<Counted>& all);

nlohmann::ordered_json to_json(const std::vector<Counted>& all);

/// The lines of the comment that states a file's figures, by its path from the root of the sources.
std::map<std::string, std::vector<std::string>> statements(const std::vector<Counted>& all);

/// The statement that a source's text has; empty if it has none.
std::vector<std::string> stated_in(const std::string& text);
/// The text with this statement: in the place of the one that it has, or behind the comment at the
/// begin of the file.
std::string with_statement(const std::string& text, const std::vector<std::string>& statement);

}  // namespace lockstep::counts
