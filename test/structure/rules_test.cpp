// docs/simulator-rules.md: each rule of CUDA has a test that breaks it.

#include <doctest/doctest.h>

#include <set>
#include <string>
#include <vector>

#include "structure/tree.h"

using namespace lockstep::test;

namespace {

/// The cells of a row of a table; none for another line.
std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  if (!line.starts_with("| ")) return cells;
  for (std::size_t begin = 2, end; (end = line.find(" |", begin)) != line.npos; begin = end + 3)
    cells.push_back(line.substr(begin, end - begin));
  return cells;
}

bool is_test(const std::string& text, const std::string& name) {
  return text.find("(\"" + name + "\"") != text.npos ||
         text.find("    \"" + name + "\")") != text.npos;  // clang-format has broken the line
}

}  // namespace

TEST_CASE("rules: each rule of CUDA in the document has its test") {
  std::string tests;
  for (const std::string& file : files_of_tree())
    if (file.starts_with("test/simt/"))
      for (const std::string& line : lines_of_file(file)) tests += line + "\n";
  std::set<std::string> rules;
  for (const std::string& line : lines_of_file("docs/simulator-rules.md")) {
    const std::vector<std::string> cells = cells_of(line);
    if (cells.empty() || cells[0] == "rule") continue;
    CAPTURE(line);
    REQUIRE(cells.size() == 5);
    CHECK(rules.insert(cells[0]).second);
    CHECK(is_test(tests, cells[4]));
  }
  CHECK(rules.size() >= 40);
}
