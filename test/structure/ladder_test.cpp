// What the pages of docs/ladder quote of docs/counters.md stands there, and so do the lines of the
// sources that pages show in sessions of gdb.

#include <doctest/doctest.h>

#include <map>
#include <regex>
#include <string>
#include <vector>

#include "structure/tree.h"

namespace lockstep::test::ladder_pages {
namespace {

using Cells = std::vector<std::string>;

/// "| a | b |" gives {"a", "b"}; what is no row of a table gives nothing.
Cells cells_of(const std::string& line) {
  Cells cells;
  if (!line.starts_with("|") || line.starts_with("|-")) return cells;
  std::size_t begin = 1;
  for (std::size_t end; (end = line.find('|', begin)) != line.npos; begin = end + 1) {
    const std::string cell = line.substr(begin, end - begin);
    const std::size_t first = cell.find_first_not_of(' '), last = cell.find_last_not_of(' ');
    cells.push_back(first == cell.npos ? "" : cell.substr(first, last + 1 - first));
  }
  return cells;
}

/// By operation, by heading.
using Counted = std::map<std::string, std::map<std::string, std::string>>;

Counted counted() {
  Counted all;
  Cells headings;
  for (const std::string& line : lines_of_file("docs/counters.md")) {
    const Cells cells = cells_of(line);
    if (cells.empty()) continue;
    if (cells[0] == "operation") headings = cells;
    if (cells.size() == headings.size() && !cells[0].empty())
      for (std::size_t c = 0; c < cells.size(); ++c) all[cells[0]][headings[c]] = cells[c];
  }
  return all;
}

/// "2.50 (1.00)" and "16.00 (25 %)", as counters.md writes figures.
std::vector<std::string> figures_in(const std::string& line) {
  static const std::regex figure(R"(\d+\.\d\d \(\d+(\.\d\d| %)\))");
  std::vector<std::string> found;
  for (std::sregex_iterator at(line.begin(), line.end(), figure), end; at != end; ++at)
    found.push_back(at->str());
  return found;
}

/// How many cells of a page's table are those of counters.md; fails the test where one differs.
/// Only tables that begin with "operation" quote it: others are docs/ladder/draw.py's.
int check_table_row(const Cells& headings, const Cells& cells, const Counted& all) {
  const auto operation = all.find(cells[0]);
  if (headings.empty() || headings[0] != "operation" || operation == all.end()) return 0;
  int checked = 0;
  for (std::size_t c = 1; c < cells.size() && c < headings.size(); ++c) {
    const auto cell = operation->second.find(headings[c]);
    if (cell == operation->second.end()) continue;
    CAPTURE(headings[c]);
    CHECK(cells[c] == cell->second);
    ++checked;
  }
  return checked;
}

/// "kernels/cuda/gemm/03_shared.cu" for "03_shared.cu"; "" unless it is one file.
std::string file_named(const std::string& name) {
  std::string found;
  for (const std::string& file : files_of_tree())
    if (("/" + file).ends_with("/" + name)) {
      if (!found.empty()) return "";
      found = file;
    }
  return found;
}

std::string without_indent(const std::string& line) {
  const std::size_t first = line.find_first_not_of(" \t");
  return first == line.npos ? "" : line.substr(first);
}

/// A place in the sources: "03_shared.cu:54".
struct Place {
  std::string file, line;

  auto operator<=>(const Place&) const = default;
};

struct Session {
  std::vector<Place> breaks;
  std::map<Place, std::string> shown;  ///< what gdb prints of the source, without indent
};

/// The sessions of a page: blocks of code with gdb's prompt. gdb shows "54  statement", of the file
/// that it was told of, or told, last.
std::vector<Session> sessions_of(const std::vector<std::string>& page) {
  static const std::regex place(R"((break|list|at) (?:\w+/)*(\w+\.cuh?):(\d+))");
  static const std::regex source(R"((\d+)(\t|  )(.+))");
  std::vector<Session> sessions;
  bool inside = false;
  std::string file;
  for (const std::string& line : page) {
    std::smatch found;
    if (line.starts_with("```")) {
      inside = false;
    } else if (line.starts_with("(gdb)") && !inside) {
      inside = true;
      file = "";
      sessions.emplace_back();
    }
    if (!inside) continue;
    if (std::regex_search(line, found, place)) {
      file = found[2];
      if (found[1] == "break") sessions.back().breaks.push_back({file, found[3]});
    } else if (std::regex_match(line, found, source)) {
      sessions.back().shown[{file, found[1]}] = without_indent(found[3]);
    }
  }
  return sessions;
}

/// "" if there is no such line.
std::string source_at(const Place& place) {
  const std::vector<std::string> lines = lines_of_file(file_named(place.file));
  const std::size_t number = std::stoul(place.line);
  return number == 0 || number > lines.size() ? "" : without_indent(lines[number - 1]);
}

}  // namespace

TEST_CASE("ladder: the check itself") {
  CHECK(cells_of("| a | b  c | |") == Cells{"a", "b  c", ""});
  CHECK(cells_of("|---|").empty());
  CHECK(figures_in("so 2.50 (1.00), 16.00 (25 %) and 0.99 (1)") ==
        std::vector<std::string>{"2.50 (1.00)", "16.00 (25 %)"});
  CHECK(counted().at("softmax 64x1024").at("shared loads") == "1.00 (1.00)");
}

TEST_CASE("ladder: every figure that a page quotes stands in docs/counters.md") {
  const Counted all = counted();
  std::string everything;
  for (const std::string& line : lines_of_file("docs/counters.md")) everything += line + "\n";
  int figures = 0, cells_checked = 0;
  for (const std::string& page : files_of_tree()) {
    if (!page.starts_with("docs/ladder/") || !page.ends_with(".md")) continue;
    CAPTURE(page);
    Cells headings;
    for (const std::string& line : lines_of_file(page)) {
      CAPTURE(line);
      for (const std::string& figure : figures_in(line)) {
        CHECK(contains(everything, " " + figure + " "));
        ++figures;
      }
      const Cells cells = cells_of(line);
      if (cells.empty()) continue;
      if (cells[0] == "operation" || cells[0].empty()) headings = cells;
      cells_checked += check_table_row(headings, cells, all);
    }
  }
  CHECK(figures >= 50);
  CHECK(cells_checked >= 50);
}

TEST_CASE("ladder: gdb stops at the lines that the pages show") {
  CHECK(sessions_of({"```", "1  x", "```", "text"}).empty());
  const std::vector<Session> example =
      sessions_of({"```", "(gdb) break a.cu:7 if x == 1", "7  f();", "$1 = 3", "8\t  g();", "```"});
  REQUIRE(example.size() == 1);
  CHECK(example[0].breaks == std::vector<Place>{{"a.cu", "7"}});
  CHECK(example[0].shown ==
        std::map<Place, std::string>{{{"a.cu", "7"}, "f();"}, {{"a.cu", "8"}, "g();"}});

  int breaks = 0;
  for (const std::string& page : files_of_tree()) {
    if (!page.ends_with(".md")) continue;
    CAPTURE(page);
    for (const Session& session : sessions_of(lines_of_file(page))) {
      for (const Place& place : session.breaks) {
        INFO("break ", place.file, ":", place.line, ": below it the page shows the line");
        CHECK(session.shown.contains(place));
        ++breaks;
      }
      for (const auto& [place, text] : session.shown) {
        CAPTURE(place.file);
        CAPTURE(place.line);
        CHECK(source_at(place) == text);
      }
    }
  }
  CHECK(breaks >= 16);
}

}  // namespace lockstep::test::ladder_pages
