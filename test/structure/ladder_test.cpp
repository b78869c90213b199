// What the pages of docs/ladder quote of docs/counters.md stands there.

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

}  // namespace lockstep::test::ladder_pages
