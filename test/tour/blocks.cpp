#include "tour/blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <regex>
#include <stdexcept>

#include "structure/tree.h"

namespace lockstep::test {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw std::runtime_error(what); }

std::string trimmed(const std::string& line) {
  const std::size_t begin = line.find_first_not_of(' ');
  return begin == line.npos ? "" : line.substr(begin, line.find_last_not_of(' ') + 1 - begin);
}

std::size_t indentation(const std::string& line) {
  const std::size_t begin = line.find_first_not_of(' ');
  return begin == line.npos ? line.size() : begin;
}

std::vector<std::string> without_indentation(std::vector<std::string> lines) {
  std::size_t common = std::string::npos;
  for (const std::string& line : lines)
    if (!line.empty()) common = std::min(common, indentation(line));
  for (std::string& line : lines) line.erase(0, std::min(common, line.size()));
  return lines;
}

/// The end of the definition that begins in line `i`, or 0 if none does: the line that closes it
/// has its indentation.
std::size_t definition_end(const std::vector<std::string>& file, std::size_t i) {
  constexpr std::size_t longest_head = 6;
  std::size_t open = i;
  while (!file[open].ends_with('{')) {
    if (file[open].ends_with(';') || ++open == file.size() || open > i + longest_head) return 0;
  }
  for (std::size_t j = open + 1; j < file.size(); ++j)
    if (!file[j].empty() && indentation(file[j]) <= indentation(file[i]))
      return trimmed(file[j]).starts_with('}') ? j + 1 : 0;
  return 0;
}

Block parse(const std::string& comment) {
  static const std::regex form(
      "<!-- (excerpt|output): ([^;]*?)(; lines (\\d+)-(\\d+))?"
      "(; times vary)? -->");
  std::smatch match;
  if (!std::regex_match(comment, match, form)) refuse("not understood: " + comment);
  Block block;
  block.is_output = match[1] == "output";
  block.source = match[2];
  if (match[3].matched) {
    block.first_line = std::stoi(match[4]);
    block.last_line = std::stoi(match[5]);
  }
  block.varies = match[6].matched;
  return block;
}

/// Without what differs from run to run: each time, rate and share (a number with a fraction, but
/// not a result, `loss=0.8`; or one before a unit), the number of a step, where in a drawn line
/// something begins and ends, and which of two ranks was the first to notice an error.
std::string masked(std::string_view line) {
  const std::string call = R"(\w+ #\d+ '[^']+' of \d+ \w+ \([\w-]+\))";
  static const std::pair<std::regex, const char*> rules[] = {
      {std::regex(R"(\|[ fbmwo]+\|)"), "|thread|"},
      {std::regex(R"(\| *r-*=* *\|)"), "|bucket|"},
      {std::regex(R"(\[\w+\] rank \d, (#\d+) '[^']+': rank \d called )" + call + ", this rank " +
                  call),
       "$1 differs"},
      {std::regex(R"((^|[^=\d.])-?\d+\.\d+(e[+-]?\d+)?)"), "$1#"},
      {std::regex(R"(\bstep \d+ of \d+)"), "step # of #"},
      {std::regex(R"(\d+ ?(us\b|ms\b|%))"), "# $1"},
      {std::regex(R"(\s+)"), " "}};
  std::string text(line);
  for (const auto& [what, by] : rules) text = std::regex_replace(text, what, by);
  return text;
}

}  // namespace

std::vector<Block> blocks_of(const std::vector<std::string>& document) {
  std::vector<Block> blocks;
  bool code = false;
  for (std::size_t i = 0; i < document.size(); ++i) {
    if (document[i].starts_with("```")) code = !code;
    if (code ||
        !(document[i].starts_with("<!-- excerpt:") || document[i].starts_with("<!-- output:")))
      continue;
    Block block = parse(document[i]);
    if (i + 1 == document.size() || !document[i + 1].starts_with("```"))
      refuse("no block follows " + document[i]);
    block.begin = block.end = i + 2;
    while (block.end < document.size() && document[block.end] != "```") ++block.end;
    if (block.end == document.size()) refuse("the block has no end: " + document[i]);
    i = block.end;
    blocks.push_back(block);
  }
  return blocks;
}

std::vector<std::string> unchecked_calls(const std::vector<std::string>& document) {
  const std::vector<Block> blocks = blocks_of(document);
  std::vector<std::string> calls;
  for (std::size_t i = 0; i < document.size(); ++i) {
    const std::string line = trimmed(document[i]);
    const bool checked = std::ranges::any_of(blocks, [&](const Block& block) {
      return block.is_output && block.begin <= i && i < block.end;
    });
    if (line.starts_with("$ ./lockstep") && !checked) calls.push_back(line);
  }
  return calls;
}

std::vector<std::string> region(const std::vector<std::string>& file, const std::string& name) {
  std::vector<std::string> lines;
  bool inside = false;
  for (const std::string& line : file) {
    const std::string text = trimmed(line);
    const bool marks = text == "// endregion " + name || text == "# endregion " + name;
    if (inside && marks) return without_indentation(lines);
    if (inside) lines.push_back(line);
    if (text == "// region " + name || text == "# region " + name) inside = true;
  }
  if (inside) refuse("region " + name + " has no end");
  const std::regex defined("(.*[^\\w.>\"])?" + name + "[^\\w\"].*");
  for (std::size_t i = 0; i < file.size(); ++i) {
    if (trimmed(file[i]).starts_with("//") || !std::regex_match(file[i], defined)) continue;
    if (const std::size_t end = definition_end(file, i); end != 0)
      return without_indentation({file.begin() + static_cast<std::ptrdiff_t>(i),
                                  file.begin() + static_cast<std::ptrdiff_t>(end)});
  }
  refuse("there is no region or definition " + name);
}

std::vector<std::string> excerpt(const std::string& source) {
  const std::size_t hash = source.find('#');
  std::vector<std::string> file = lines_of_file(source.substr(0, hash));
  if (file.empty()) refuse("there is no file " + source.substr(0, hash));
  return hash == source.npos ? file : region(file, source.substr(hash + 1));
}

std::vector<std::string> shown_output(const Block& block, const std::string& printed) {
  const std::vector<std::string> all = lines_of(printed);
  const auto last = block.last_line == 0 ? all.size() : static_cast<std::size_t>(block.last_line);
  if (last > all.size())
    refuse(fmt::format("{} printed {} lines, not {}", block.source, all.size(), last));
  std::vector<std::string> lines = {"$ " + block.source};
  if (block.first_line > 1) lines.push_back("...");
  for (std::size_t i = static_cast<std::size_t>(block.first_line) - 1; i < last; ++i)
    lines.push_back(all[i].substr(0, all[i].find_last_not_of(' ') + 1));
  if (last < all.size()) lines.push_back("...");
  return lines;
}

std::vector<std::string> with_named_digests(std::vector<std::string> lines) {
  // A digest has a digit: "ffffffff" is a drawn thread that goes forward.
  static const std::regex digest(
      "(^|[^.\\w])(?=[a-f]*[0-9])((?=[0-9]*[a-f])[0-9a-f]{8,}|[0-9a-f]{12,})\\b");
  std::map<std::string, std::string> names;
  for (std::string& line : lines) {
    std::string named;
    std::smatch found;
    std::string rest = line;
    while (std::regex_search(rest, found, digest)) {
      const auto name = names.try_emplace(found[2], fmt::format("digest {}", names.size())).first;
      named += found.prefix().str() + found[1].str() + name->second;
      rest = found.suffix();
    }
    line = named + rest;
  }
  return lines;
}

bool says_the_same(std::string_view a, std::string_view b, bool varies) {
  if (varies) return says_the_same(masked(a), masked(b), false);
  static const std::regex number("-?\\d+(\\.\\d+)?(e[+-]?\\d+)?");
  const std::string texts[] = {std::string(a), std::string(b)};
  std::sregex_iterator x(texts[0].begin(), texts[0].end(), number), end;
  std::sregex_iterator y(texts[1].begin(), texts[1].end(), number);
  std::string rest[2];
  for (int k = 0; k < 2; ++k)
    rest[k] = std::regex_replace(std::regex_replace(texts[k], number, "#"), std::regex(" +"), " ");
  if (rest[0] != rest[1]) return false;
  for (; x != end && y != end; ++x, ++y) {
    const std::string p = x->str(), q = y->str();
    if (p.find_first_of(".e") == p.npos && q.find_first_of(".e") == q.npos) {
      if (p != q) return false;
      continue;
    }
    const double u = std::stod(p), v = std::stod(q);
    const double larger = std::max(std::abs(u), std::abs(v));
    const bool rounding = larger < 1e-6 && u != 0 && v != 0;  // of another machine
    if (!rounding && std::abs(u - v) > 1e-5 * larger) return false;
  }
  return x == end && y == end;
}

}  // namespace lockstep::test
