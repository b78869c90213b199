// What the documents point to is there: files, headings, samples.

#include <doctest/doctest.h>

#include <cctype>
#include <filesystem>
#include <regex>
#include <set>
#include <string>

#include "structure/tree.h"

using namespace lockstep::test;

namespace {

namespace fs = std::filesystem;

/// As viewers of Markdown make it: "## What it costs" gives "what-it-costs".
std::string anchor_of(const std::string& heading) {
  std::string anchor;
  for (const char c : heading.substr(heading.find_first_not_of("# "))) {
    if (std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_')
      anchor += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    else if (c == ' ')
      anchor += '-';
  }
  return anchor;
}

std::set<std::string> anchors_of(const std::string& path) {
  std::set<std::string> anchors;
  for (const std::string& line : lines_of_file(path))
    if (line.starts_with('#')) anchors.insert(anchor_of(line));
  return anchors;
}

/// What is wrong with a link of a document, or "".
std::string problem_with(const std::string& document, const std::string& target) {
  if (target.find("://") != target.npos) return "";
  const std::size_t hash = target.find('#');
  const fs::path beside = fs::path(document).parent_path() / target.substr(0, hash);
  const std::string path = hash == 0 ? document : beside.lexically_normal().string();
  if (!fs::exists(fs::path(LOCKSTEP_SOURCE_DIR) / path)) return "there is no " + path;
  if (hash == target.npos || !path.ends_with(".md")) return "";
  return anchors_of(path).contains(target.substr(hash + 1)) ? "" : path + " has no such heading";
}

/// The lines that are not code.
std::vector<std::string> prose_of(const std::string& path) {
  std::vector<std::string> lines;
  bool code = false;
  for (const std::string& line : lines_of_file(path)) {
    if (line.starts_with("```")) code = !code;
    if (!code) lines.push_back(line);
  }
  return lines;
}

}  // namespace

TEST_CASE("links: the check itself") {
  CHECK(anchor_of("## What `auto` takes, and why") == "what-auto-takes-and-why");
  CHECK(problem_with("docs/ddp.md", "../README.md") == "");
  CHECK(problem_with("docs/ddp.md", "none.md") != "");
  CHECK(problem_with("docs/ddp.md", "#buckets-and-layouts") == "");
  CHECK(problem_with("README.md", "docs/ddp.md#buckets-and-nothing") != "");
}

TEST_CASE("links: every link of a document leads somewhere") {
  const std::regex link(R"(\]\(([^)\s]+)\))");
  int links = 0;
  for (const std::string& document : files_of_tree()) {
    if (!document.ends_with(".md")) continue;
    for (const std::string& line : prose_of(document))
      for (std::sregex_iterator at(line.begin(), line.end(), link), end; at != end; ++at, ++links) {
        CAPTURE(document);
        CAPTURE(line);
        CHECK(problem_with(document, (*at)[1]) == "");
      }
  }
  CHECK(links > 50);
}

TEST_CASE("links: every sample that a document names is there") {
  const std::regex sample(R"(lockstep sample ([a-z0-9_]+))");
  for (const std::string& document : files_of_tree()) {
    if (!document.ends_with(".md")) continue;
    for (const std::string& line : lines_of_file(document))
      for (std::sregex_iterator at(line.begin(), line.end(), sample), end; at != end; ++at) {
        if ((*at)[1] == "mine") continue;  // that of a reader
        CAPTURE(line);
        CHECK(fs::exists(fs::path(LOCKSTEP_SOURCE_DIR) / "samples" / ((*at)[1].str() + ".cpp")));
      }
  }
}
