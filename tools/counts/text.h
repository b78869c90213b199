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

/// The same, and of each launch the first requests of each line, lane by lane: what
/// docs/ladder/draw.py draws.
///
///     "requests": [{"at": "kernels/cuda/common.cuh:87", "kind": "global load", "bytes": 16,
///                   "warp": 0, "memory": 0, "lanes": [0, 16, null, ...]}, ...],
///     "chunks": [[0, 0], ...]
///
/// `lanes` are offsets in bytes from the begin of a tensor, or of shared memory; `memory` says of
/// which one. `chunks` are pairs of offsets: where 16 bytes of the first box of the copy engine lie
/// in their matrix, and where in their box.
nlohmann::ordered_json trace_of(const std::vector<Counted>& all);

/// The lines of the comment that states a file's figures, by its path from the root of the sources.
std::map<std::string, std::vector<std::string>> statements(const std::vector<Counted>& all);

/// The statement that a source's text has; empty if it has none.
std::vector<std::string> stated_in(const std::string& text);
/// The text with this statement: in the place of the one that it has, or behind the comment at the
/// begin of the file.
std::string with_statement(const std::string& text, const std::vector<std::string>& statement);

}  // namespace lockstep::counts
