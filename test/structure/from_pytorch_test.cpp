// docs/from_pytorch.md holds every pair of test/vocabulary, and every operation stands in a pair.

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <regex>
#include <string>

#include "structure/pytorch_pairs.h"

using namespace lockstep::test;

namespace {

const std::string page_path = "docs/from_pytorch.md";
const std::string begin_mark = "<!-- Written by ./lockstep drill from-pytorch: -->\n";
const std::string end_mark = "<!-- until here -->\n";

/// As code in a cell of a table.
std::string cell_of(const std::string& code) {
  return "`" + std::regex_replace(code, std::regex("\\|"), "\\|") + "`";
}

/// What stands between the marks of the page.
std::string tables_of(const std::vector<PytorchSection>& sections) {
  std::string text;
  for (const PytorchSection& section : sections) {
    text += "\n### " + section.heading + "\n";
    bool in_table = false;
    for (const PytorchPair& pair : section.pairs) {
      if (pair.is_program) {
        text += "\n" + pair.title + ":\n\n```python\n" + pair.theirs + "```\n\n```cpp\n" +
                pair.ours + "```\n";
      } else {
        if (!in_table) text += "\n| PyTorch | Lockstep |\n|---|---|\n";
        text += "| " + cell_of(pair.theirs) + " | " + cell_of(pair.ours) + " |\n";
      }
      in_table = !pair.is_program;
    }
  }
  return text + "\n";
}

std::string page_text() {
  std::string text;
  for (const std::string& line : lines_of_file(page_path)) text += line + "\n";
  return text;
}

/// The function that a line declares outside of classes, as "sum" or "operator+"; else empty.
std::string declared_function(const std::string& line) {
  static const std::regex declaration(
      "(?:inline |constexpr |\\[\\[\\w+\\]\\] )*[A-Za-z][\\w:<>]*(?: [\\w:<>]+)*[&*]? "
      "(operator[^\\s\\w(]+|\\w+)\\(.*");
  static const std::regex other("(template|return|using|static_assert|extern|else|struct|class).*");
  std::smatch match;
  if (std::regex_match(line, other) || !std::regex_match(line, match, declaration)) return "";
  return match[1];
}

/// Whether one of our texts calls `function`; of an operator, whether it stands between operands.
bool is_used(const std::string& function, const std::vector<PytorchSection>& sections) {
  const bool is_operator = function.starts_with("operator");
  const std::string symbol = is_operator ? function.substr(8) : "";
  const std::string between = symbol == "~" ? symbol : " " + symbol + " ";
  const std::regex call(is_operator ? "" : "(^|[^\\w.])" + function + "\\(");
  for (const PytorchSection& section : sections)
    for (const PytorchPair& pair : section.pairs)
      if (is_operator ? contains(pair.ours, between) : std::regex_search(pair.ours, call))
        return true;
  return false;
}

/// The headers that lockstep.h includes, and those that ops.h does.
std::vector<std::string> headers_of_users() {
  std::vector<std::string> headers;
  for (const std::string from : {"lockstep.h", "autograd/ops.h"})
    for (const std::string& line : lines_of_file(from))
      if (line.starts_with("#include \"lockstep/") && !contains(line, "version.h"))
        headers.push_back(line.substr(19, line.size() - 20));
  return headers;
}

}  // namespace

TEST_CASE("drill from-pytorch: writes the tables of docs/from_pytorch.md") {
  if (!std::getenv("LOCKSTEP_RUNS")) return;  // only when it is asked for
  const std::string page = page_text();
  const std::size_t begin = page.find(begin_mark), end = page.find(end_mark);
  REQUIRE(begin != page.npos);
  REQUIRE(end != page.npos);
  std::ofstream(LOCKSTEP_SOURCE_DIR "/" + page_path)
      << page.substr(0, begin + begin_mark.size()) << tables_of(pytorch_sections())
      << page.substr(end);
}

TEST_CASE("from PyTorch: the page has every pair of test/vocabulary, and no other") {
  const std::vector<PytorchSection> sections = pytorch_sections();
  std::size_t pairs = 0;
  for (const PytorchSection& section : sections) {
    CAPTURE(section.heading);
    CHECK(!section.pairs.empty());
    for (const PytorchPair& pair : section.pairs) {
      CAPTURE(pair.theirs);
      CHECK(!pair.theirs.empty());
      CHECK(!pair.ours.empty());
      CHECK(pair.is_program != pair.title.empty());
      ++pairs;
    }
  }
  CHECK(pairs >= 310);  // or the check reads nothing
  const std::string page = page_text();
  const std::size_t begin = page.find(begin_mark), end = page.find(end_mark);
  REQUIRE(begin != page.npos);
  REQUIRE(end != page.npos);
  const std::size_t from = begin + begin_mark.size();
  CHECK_MESSAGE(page.substr(from, end - from) == tables_of(sections),
                "the page is not current: ./lockstep drill from-pytorch writes it");
}

TEST_CASE("from PyTorch: every operation stands in a pair") {
  const std::vector<PytorchSection> sections = pytorch_sections();
  int functions = 0;
  for (const std::string& header : headers_of_users()) {
    if (!header.starts_with("autograd/ops")) continue;
    for (const std::string& line : lines_of_file(header)) {
      const std::string function = declared_function(line);
      if (function.empty() || function == "dimension" || function == "label_weight") continue;
      ++functions;
      CHECK_MESSAGE(is_used(function, sections), header, ": ", function);
    }
  }
  CHECK(functions >= 120);
}

TEST_CASE("reference: every function that lockstep.h declares has a comment") {
  // One comment is about all declarations below it, up to an empty line: docs/filter.awk.
  int functions = 0;
  for (const std::string& header : headers_of_users()) {
    bool commented = false;
    for (const std::string& line : lines_of_file(header)) {
      if (line.starts_with("///")) commented = true;
      if (line.empty()) commented = false;
      if (declared_function(line).empty()) continue;
      ++functions;
      CHECK_MESSAGE((commented || contains(line, "///<")), header, ": ", line);
    }
  }
  CHECK(functions >= 180);
}

TEST_CASE("from PyTorch: the lines of the whole programs are in the programs") {
  const auto joined = [](const std::string& path) {
    std::string text;
    for (const std::string& line : lines_of_file(path)) text += line + " ";
    return std::regex_replace(text, std::regex("\\s+"), " ");
  };
  const std::string theirs = joined("test/reference/first_program/train.py"),
                    ours = joined("samples/first_program.cpp");
  const std::regex row("\\| `([^`]*)` \\| `([^`]*)` \\|.*\\|");
  int rows = 0;
  bool whole = false;
  for (const std::string& line : lines_of_file(page_path)) {
    if (line.starts_with("## ")) whole = line == "## A whole program";
    std::smatch match;
    if (!whole || !std::regex_match(line, match, row)) continue;
    CAPTURE(line);
    CHECK(contains(theirs, match[1].str()));
    CHECK(contains(ours, match[2].str()));
    ++rows;
  }
  CHECK(rows >= 10);
}
