#include "lockstep/tools/facts/sources.h"

#include <algorithm>
#include <cctype>

#include "lockstep/core/error.h"
#include "lockstep/tools/facts/text.h"

namespace lockstep::facts {
namespace {

constexpr std::string_view folders[] = {"core/cuda", "kernels/cuda"};

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

bool is_comment(std::string_view line) { return trimmed(line).starts_with("//"); }

/// The name of the function declared by `text`, which follows `__global__`: the first word before
/// an opening parenthesis that is no attribute (they begin with two underscores).
std::string declared_name(std::string_view text) {
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
std::string comment_above(const std::vector<std::string_view>& lines, std::size_t index) {
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

}  // namespace

bool SourceKernel::claims(std::string_view phrase) const {
  for (auto at = comment.find(phrase); at != std::string::npos; at = comment.find(phrase, at + 1)) {
    const auto end = at + phrase.size();
    if ((at == 0 || !is_word(comment[at - 1])) && (end == comment.size() || !is_word(comment[end])))
      return true;
  }
  return false;
}

std::vector<SourceKernel> kernels_in(std::string_view text, const std::string& source) {
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

bool is_of_library(std::string_view source) {
  return std::ranges::any_of(folders,
                             [&](std::string_view folder) { return source.starts_with(folder); });
}

std::vector<SourceKernel> find_kernels(const std::filesystem::path& root) {
  std::vector<SourceKernel> kernels;
  for (const std::string_view folder : folders)
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / folder)) {
      const auto extension = entry.path().extension();
      if (extension != ".cu" && extension != ".cuh") continue;
      const std::string source = entry.path().lexically_relative(root).string();
      std::ranges::move(kernels_in(read_file(entry.path()), source), std::back_inserter(kernels));
    }
  std::ranges::sort(kernels, {}, &SourceKernel::name);
  return kernels;
}

std::string ListedKernel::test_folder() const {
  return std::filesystem::path(test_file).parent_path().filename().string();
}

std::vector<ListedKernel> parse_list(std::string_view text) {
  std::vector<ListedKernel> list;
  for (const std::string_view line : lines_of(text)) {
    if (trimmed(line).empty() || line.starts_with('#')) continue;
    std::vector<std::string> fields;
    for (std::size_t begin = 0; begin <= line.size();) {
      const auto end = std::min(line.find('|', begin), line.size());
      fields.emplace_back(trimmed(line.substr(begin, end - begin)));
      begin = end + 1;
    }
    const bool hopper = fields.size() == 5 && fields[4] == "hopper";
    check<DataError>(fields.size() == 4 || hopper,
                     "[kernel facts] not name | source | test file | test case [| hopper]: {}",
                     line);
    list.push_back({fields[0], fields[1], fields[2], fields[3], hopper});
  }
  return list;
}

std::vector<ListedKernel> read_list(const std::filesystem::path& root) {
  return parse_list(read_file(root / "test/facts/kernels.txt"));
}

}  // namespace lockstep::facts
