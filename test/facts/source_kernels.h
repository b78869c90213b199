#pragma once
/// What the sources say about kernels.

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iterator>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/tools/facts/build.h"
#include "lockstep/tools/facts/text.h"

namespace lockstep::facts {

/// A `__global__` function.
struct SourceKernel {
  std::string name;
  std::string source;   ///< relative to the root of the sources
  std::string comment;  ///< the // lines directly above it, in one line

  /// Whether the comment has this phrase, between other words: "mma" is not in "wgmma".
  bool claims(const std::string& phrase) const {
    return std::regex_search(comment, std::regex("\\b" + phrase + "\\b"));
  }
};

inline bool is_comment(std::string_view line) { return trimmed(line).starts_with("//"); }

/// The name of the function declared by `text`, which follows `__global__`: the first word before
/// an opening parenthesis that is no attribute (they begin with two underscores).
inline std::string declared_name(std::string_view text) {
  const auto is_word = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
  };
  std::size_t at = 0;
  while (true) {
    const auto open = text.find('(', at);
    if (open == std::string_view::npos) return {};
    auto begin = open;
    while (begin > 0 && is_word(text[begin - 1])) --begin;
    const std::string_view word = text.substr(begin, open - begin);
    if (!word.starts_with("__")) return std::string(word);
    int depth = 0;
    for (at = open; at < text.size(); ++at) {
      depth += (text[at] == '(') - (text[at] == ')');
      if (depth == 0) break;
    }
  }
}

/// The comment that ends above lines[index], or above the `template <...>` that is there.
inline std::string comment_above(const std::vector<std::string_view>& lines, std::size_t index) {
  std::size_t end = index;
  if (end > 0 && !is_comment(lines[end - 1]) && trimmed(lines[end - 1]).ends_with('>')) {
    while (end > 0 && !trimmed(lines[--end]).starts_with("template")) {
    }
  }
  std::size_t begin = end;
  while (begin > 0 && is_comment(lines[begin - 1])) --begin;
  std::string comment;
  for (; begin < end; ++begin) {
    std::string_view line = trimmed(lines[begin]);
    line.remove_prefix(std::min(line.find_first_not_of('/'), line.size()));
    if (!comment.empty()) comment += ' ';
    comment += trimmed(line);
  }
  return comment;
}

/// Those of one file's text.
inline std::vector<SourceKernel> kernels_in(std::string_view text, const std::string& source) {
  std::vector<SourceKernel> kernels;
  const std::vector<std::string_view> lines = lines_of(text);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    constexpr std::string_view mark = "__global__";
    const auto at = lines[i].find(mark);
    if (at == std::string_view::npos || is_comment(lines[i])) continue;
    const auto after = static_cast<std::size_t>(lines[i].data() - text.data()) + at + mark.size();
    kernels.push_back({declared_name(text.substr(after)), source, comment_above(lines, i)});
  }
  return kernels;
}

/// The kernels of the library, by name.
inline std::vector<SourceKernel> find_kernels(const std::filesystem::path& root) {
  std::vector<SourceKernel> kernels;
  for (const std::string_view folder : kernel_folders)
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / folder)) {
      const auto extension = entry.path().extension();
      if (extension != ".cu" && extension != ".cuh") continue;
      const std::string source = entry.path().lexically_relative(root).string();
      std::ranges::move(kernels_in(read_file(entry.path()), source), std::back_inserter(kernels));
    }
  std::ranges::sort(kernels, {}, &SourceKernel::name);
  return kernels;
}

}  // namespace lockstep::facts
