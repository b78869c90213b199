#include "lockstep/tools/facts/text.h"

#include <fstream>
#include <iterator>

#include "lockstep/core/error.h"
#include "lockstep/core/system/file_kind.h"
#include "lockstep/tools/split.h"

namespace lockstep::facts {

std::string read_file(const std::filesystem::path& path) {
  const std::string why = why_unreadable(path);
  check<DataError>(why.empty(), "[kernel facts] cannot read {}: {}", path.string(), why);
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines = cli::split(text, '\n');
  if (lines.back().empty()) lines.pop_back();  // behind the last line's end
  return lines;
}

std::optional<std::string_view> between(std::string_view text, std::string_view begin,
                                        std::string_view end) {
  const auto first = text.find(begin);
  if (first == std::string_view::npos) return {};
  text.remove_prefix(first + begin.size());
  const auto last = text.find(end);
  if (last == std::string_view::npos) return {};
  return text.substr(0, last);
}

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

}  // namespace lockstep::facts
