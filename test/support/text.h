#pragma once
/// What tests ask about the output of programs and the messages of errors.

#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/error.h"

namespace lockstep::test {

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// How often `part` occurs in `text`, without overlaps.
inline int count(std::string_view text, std::string_view part) {
  int found = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != text.npos; at += part.size()) ++found;
  return found;
}

/// Without their line ends.
inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// Whom the error blames, as text; "" for nobody.
inline std::string blamed_by(const Error& error) {
  return error.blame ? text_of(*error.blame) : "";
}

}  // namespace lockstep::test
