// The words that test cases carry (CONTRIBUTING.md, "Words of a test case"): .ci/run leaves cases
// out by labels alone, and a word that is misspelt is none.

#include <doctest/doctest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "structure/tree.h"

using namespace lockstep::test;

namespace {

/// The text of a file, for scripts without the lines that are comments.
std::string text_of_file(const std::string& path) {
  std::string text;
  for (const std::string& line : lines_of_file(path))
    if (is_source(path) ||
        !line.substr(std::min(line.find_first_not_of(' '), line.size())).starts_with('#'))
      text += line + "\n";
  return text;
}

/// What the group of `pattern` takes from `text`, for each place where it fits.
std::vector<std::string> all(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  std::vector<std::string> found;
  for (std::sregex_iterator at(text.begin(), text.end(), regex), end; at != end; ++at)
    found.push_back((*at)[1]);
  return found;
}

std::set<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

/// "slow", and not-WAY for each way of running that test/CMakeLists.txt tells apart.
std::set<std::string> known_words() {
  std::set<std::string> words{"slow"};
  const std::string runs = text_of_file("test/CMakeLists.txt");
  for (const char* pattern : {"WAYS ([a-z][a-z ]*)", "set\\(way ([a-z]+)\\)"})
    for (const std::string& ways : all(runs, pattern))
      for (const std::string& way : words_of(ways)) words.insert("not-" + way);
  for (const char* sanitizer : {"address", "thread", "races"})
    words.insert(std::string("not-") + sanitizer);
  return words;
}

bool is_test(const std::string& file) {
  return file.starts_with("test/") && file != "test/structure/words_test.cpp" && is_source(file);
}

/// The words of every case, each with a file that has it.
std::map<std::string, std::string> words_of_cases() {
  std::map<std::string, std::string> words;
  for (const std::string& file : files_of_tree())
    if (is_test(file))
      for (const std::string& suite :
           all(text_of_file(file), "(?:test_suite|TEST_SUITE_BEGIN)\\(\"([^\"]*)\"\\)"))
        for (const std::string& word : words_of(suite)) words[word] = file;
  return words;
}

}  // namespace

TEST_CASE("words: every word of a test case is a known one, and every known one is used") {
  const std::map<std::string, std::string> used = words_of_cases();
  const std::set<std::string> known = known_words();
  CHECK(known.size() == 7);
  for (const auto& [word, file] : used)
    CHECK_MESSAGE(known.contains(word), file << ": no such word of a case: " << word);
  for (const std::string& word : known) CHECK_MESSAGE(used.contains(word), "nobody says " << word);
}

// What is begun and not ended would reach into the next file of a unity unit. A case's own words
// replace those of its part of the file.
TEST_CASE("words: a part of a file that has words ends in that file, and its cases repeat them") {
  for (const std::string& file : files_of_tree()) {
    if (!is_test(file)) continue;
    CAPTURE(file);
    std::set<std::string> part;
    bool open = false;
    for (const std::string& line : lines_of_file(file)) {
      CAPTURE(line);
      if (line.starts_with("TEST_SUITE_BEGIN(")) {
        CHECK_FALSE(open);
        open = true;
        part = words_of(all(line, "\"([^\"]*)\"").at(0));
      } else if (line.starts_with("TEST_SUITE_END(")) {
        CHECK(open);
        open = false;
        part.clear();
      }
      for (const std::string& suite : all(line, "test_suite\\(\"([^\"]*)\"\\)"))
        for (const std::string& word : part) CHECK(words_of(suite).contains(word));
    }
    CHECK_FALSE(open);
  }
}

TEST_CASE("words: CI leaves cases out by labels, and never by their names") {
  const std::string commands = text_of_file(".ci/run");
  CHECK(all(commands, "(\\./lockstep test)").size() == 5);
  CHECK(all(commands, "[ (](-E|-R|--exclude-regex|--tests-regex|-I|-FA|-FS|-FC)[ =]").empty());
  const std::vector<std::string> labels = all(commands, "-LE '\\^([a-z|()]*)\\$'");
  CHECK(labels.size() == all(commands, "[ (](-L|-LE|--label-[a-z]*)[ =]").size());
  const std::set<std::string> given{"slow", "spared"};  // by test/cases.cmake.in
  for (const std::string& label : labels) CHECK_MESSAGE(given.contains(label), label);
  const std::string cases = text_of_file("test/cases.cmake.in");
  for (const std::string& label : given)
    CHECK(all(cases, "APPEND labels (" + label + ")\\)").size() == 1);
}
