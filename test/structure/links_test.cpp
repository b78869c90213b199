// What the documents point to is there: files, headings, samples.

#include <doctest/doctest.h>

#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>

#include "structure/tree.h"
#include "support/temporary_folder.h"

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

/// What a page of the site points to and what is not there.
std::vector<std::string> dead_links(const fs::path& page, int& links) {
  std::ifstream file(page);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::regex link("(?:href|src)=\"([^\"]*)\"");
  std::vector<std::string> dead;
  for (std::sregex_iterator at(text.begin(), text.end(), link), end; at != end; ++at) {
    const std::string target = (*at)[1];
    if (contains(target, ":") || target.starts_with('/')) continue;
    if (contains(target, "js/")) continue;  // the theme's, which other packages bring
    ++links;
    const std::size_t hash = target.find('#');
    fs::path there = hash == 0 ? page : page.parent_path() / target.substr(0, hash);
    if (there.filename().empty() || fs::is_directory(there)) there /= "index.html";
    bool found = fs::exists(there);
    if (found && hash != target.npos && hash + 1 < target.size()) {
      std::ifstream other(there);
      const std::string words{std::istreambuf_iterator<char>(other), {}};
      found = contains(words, "id=\"" + target.substr(hash + 1) + "\"");
    }
    if (!found) dead.push_back(target);
  }
  return dead;
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

TEST_CASE("links: the site is built without a warning, and all its links lead somewhere") {
  if (std::system("command -v mkdocs > /dev/null") != 0) {
    MESSAGE("skipped: mkdocs is not installed");
    return;
  }
  const TemporaryFolder folder;
  const std::string build = "cd '" LOCKSTEP_SOURCE_DIR "' && mkdocs build --strict --quiet -d '" +
                            folder / "site" + "' 2> '" + folder / "log" + "'";
  const bool built = std::system(build.c_str()) == 0;
  std::ifstream log(folder / "log");
  INFO(std::string(std::istreambuf_iterator<char>(log), {}));
  REQUIRE(built);
  int links = 0, pages = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder / "site")) {
    if (entry.path().extension() != ".html" || entry.path().filename() == "404.html") continue;
    CAPTURE(entry.path());
    for (const std::string& link : dead_links(entry.path(), links)) FAIL_CHECK(link);
    ++pages;
  }
  CHECK(pages >= 25);
  CHECK(links >= 1000);
}
