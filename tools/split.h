#pragma once
/// Cutting a text where a character stands.

#include <string_view>
#include <vector>

namespace lockstep::cli {

/// What is before, between and after the separators, so that there is always one more than there
/// are separators. The parts point into `text`.
inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t end = 0; end != text.npos; text.remove_prefix(end == text.npos ? 0 : end + 1)) {
    end = text.find(separator);
    parts.push_back(text.substr(0, end));
  }
  return parts;
}

}  // namespace lockstep::cli
