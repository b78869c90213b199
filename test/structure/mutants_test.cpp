// The tables of test/mutants: every entry fits the sources and the tests as they are now. Whether
// the tests notice the slips is for ./lockstep mutants to say.

#include <doctest/doctest.h>

#include <map>
#include <regex>
#include <set>
#include <string>

#include "structure/tree.h"

using namespace lockstep::test;

namespace {

struct Entry {
  std::string name{}, file{}, source{}, old_text{}, folder{}, test_case{};
  bool has_new = false, equivalent = false, races = false;
};

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

/// What follows `word` at the beginning of `line`, if it is there.
bool cut(const std::string& line, const std::string& word, std::string& rest) {
  if (!line.starts_with(word)) return false;
  rest = line.substr(word.size());
  return true;
}

std::vector<Entry> entries_of(const std::string& table) {
  std::vector<Entry> entries;
  for (const std::string& line : lines_of_file(table)) {
    CAPTURE(line);
    std::string rest;
    if (const std::size_t end = line.find("] "); line.starts_with('[') && end != line.npos) {
      const std::string file = line.substr(end + 2), header = file.substr(0, file.find(" of "));
      entries.push_back({.name = line.substr(1, end - 1),
                         .file = header,
                         .source = header == file ? file : file.substr(header.size() + 4)});
      continue;
    }
    if (line.empty() || line.starts_with('#')) continue;
    REQUIRE_MESSAGE(!entries.empty(), "an entry begins with [name] FILE");
    Entry& entry = entries.back();
    if (cut(line, "- ", rest)) {
      entry.old_text += (entry.old_text.empty() ? "" : "\n") + rest;
    } else if (line == "+" || line.starts_with("+ ")) {
      entry.has_new = true;
    } else if (line.starts_with("test_") && line.find(": ") != line.npos) {
      entry.folder = line.substr(5, line.find(": ") - 5);
      entry.test_case = line.substr(line.find(": ") + 2);
    } else if (cut(line, "equivalent: ", rest)) {
      entry.equivalent = true;
    } else {
      entry.races |= line == "races";
      CHECK_MESSAGE((line == "may hang" || line == "races" || line.starts_with("program ") ||
                     line.starts_with("report ") || line.starts_with("with ")),
                    "what does this mean?");
    }
  }
  return entries;
}

int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != text.npos; ++at) ++count;
  return count;
}

/// The names of the test cases of test/FOLDER, of which a long one may stand on several lines.
std::set<std::string> cases_of(const std::string& folder) {
  std::set<std::string> names;
  const std::regex macro("TEST_CASE(_TEMPLATE)?\\(\\s*\"((?:[^\"\\\\]|\\\\.|\"\\s*\")*)\""),
      seam("\"\\s*\"");
  for (const std::string& file : files_of_tree()) {
    if (!file.starts_with("test/" + folder + "/")) continue;
    const std::string text = joined(lines_of_file(file));
    for (std::sregex_iterator at(text.begin(), text.end(), macro), end; at != end; ++at)
      names.insert(std::regex_replace((*at)[2].str(), seam, ""));
  }
  return names;
}

}  // namespace

TEST_CASE("mutants: every entry has its source, its old text once, and its test case") {
  std::set<std::string> names;
  std::map<std::string, std::set<std::string>> cases;
  for (const std::string& table : files_of_tree()) {
    if (!table.starts_with("test/mutants/") || !table.ends_with(".txt")) continue;
    CAPTURE(table);
    CHECK(lines_of_file(table).size() < 400);
    for (const Entry& entry : entries_of(table)) {
      CAPTURE(entry.name);
      CHECK_MESSAGE(names.insert(entry.name).second, "two entries have this name");
      const std::string kind = entry.source.substr(entry.source.rfind('.'));
      CHECK_MESSAGE((kind == ".cpp" || (kind == ".cu" && entry.races)),
                    "only a source can be linked in another's place, and kernels are for --races");
      CHECK_MESSAGE((entry.file == entry.source || entry.file.ends_with(".h") ||
                     entry.file.ends_with(".cuh")),
                    "no header");
      CHECK_FALSE(lines_of_file(entry.source).empty());
      CHECK_MESSAGE(count_of(joined(lines_of_file(entry.file)), entry.old_text) == 1,
                    "stale: the old text is not in ", entry.file, " exactly once");
      CHECK(entry.has_new);
      CHECK(entry.equivalent == entry.test_case.empty());
      if (entry.equivalent) continue;
      if (!cases.contains(entry.folder)) cases[entry.folder] = cases_of(entry.folder);
      CHECK_MESSAGE(cases[entry.folder].contains(entry.test_case),
                    "no such test case: ", entry.test_case);
    }
  }
  CHECK(names.size() >= 120);
}
