// Files and folders that one can read, and one format.

#include <doctest/doctest.h>
#include <sys/wait.h>

#include <cstdio>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <string_view>

#include "structure/tree.h"

using namespace lockstep::test;

namespace {

/// Characters of a line of UTF-8.
std::size_t width_of(std::string_view line) {
  std::size_t count = 0;
  for (const char byte : line) count += (byte & 0xc0) != 0x80;
  return count;
}

/// "[text](target)" takes the width of "[text]": a target cannot be broken.
std::string without_targets(std::string line) {
  for (std::size_t at = 0; (at = line.find("](", at)) != std::string::npos; ++at) {
    const std::size_t end = line.find(')', at);
    if (end != std::string::npos) line.erase(at + 1, end - at);
  }
  return line;
}

/// The numbers of lines of prose that are longer than 100 columns: not those of tables and code.
std::vector<std::size_t> long_lines(const std::vector<std::string>& lines) {
  std::vector<std::size_t> found;
  bool code = false;
  for (std::size_t k = 0; k < lines.size(); ++k) {
    if (lines[k].starts_with("```")) code = !code;
    const bool one_line = lines[k].starts_with('|') || lines[k].starts_with("<!-- output:");
    if (!code && !one_line && width_of(without_targets(lines[k])) > 100) found.push_back(k + 1);
  }
  return found;
}

struct Ended {
  int code;
  std::string out;
};

Ended shell(const std::string& command) {
  std::FILE* const pipe = popen((command + " 2>&1 </dev/null").c_str(), "r");
  REQUIRE(pipe != nullptr);
  Ended ended{-1, {}};
  char buffer[4096];
  while (const std::size_t got = std::fread(buffer, 1, sizeof buffer, pipe))
    ended.out.append(buffer, got);
  const int status = pclose(pipe);
  if (WIFEXITED(status)) ended.code = WEXITSTATUS(status);
  return ended;
}

}  // namespace

TEST_CASE("limits: no source has more than 400 lines") {
  for (const std::string& file : files_of_tree())
    if (is_source(file)) {
      CAPTURE(file);
      CHECK(lines_of_file(file).size() <= 400);
    }
}

// How a batch is cut is decided in autograd/lanes/: an operation says what it does with rows.
TEST_CASE("limits: operations do not know of lanes") {
  for (const std::string& file : files_of_tree())
    if (is_source(file) && file.find("autograd/ops/") != std::string::npos)
      for (const std::string& line : lines_of_file(file)) {
        CAPTURE(file);
        CAPTURE(line);
        CHECK(line.find("lane") == std::string::npos);
        CHECK(line.find("Lane") == std::string::npos);
      }
}

namespace {

bool is_library(const std::string& file) {
  const std::set<std::string> folders{"core", "kernels", "autograd", "dist",
                                      "nn",   "data",    "launch"};
  return folders.contains(file.substr(0, file.find('/')));
}

}  // namespace

// A std::istringstream takes blanks and digits as the program's std::locale::global() does.
TEST_CASE("limits: the library reads text by classic_stream()") {
  for (const std::string& file : files_of_tree())
    if (is_source(file) && is_library(file) && !file.starts_with("core/text/number."))
      for (const std::string& line : lines_of_file(file)) {
        CAPTURE(file);
        CAPTURE(line);
        CHECK((line.find("istringstream") == std::string::npos ||
               line.find("classic_stream") != std::string::npos ||
               line.find("std::vector<std::istringstream>") != std::string::npos));
      }
}

// Who is to blame is a value (core/error.h) up to these places, which print it.
TEST_CASE("limits: a blame becomes text only where it is printed") {
  const std::set<std::string> prints{"core/error.h",
                                     "core/text/blame.cpp",
                                     "dist/rendezvous/events/rank_event.h",
                                     "dist/rendezvous/ranks.cpp",
                                     "launch/job_result.cpp",
                                     "launch/survivors.cpp"};
  for (const std::string& file : files_of_tree())
    if (is_source(file) && is_library(file) && !prints.contains(file))
      for (const std::string& line : lines_of_file(file)) {
        CAPTURE(file);
        CAPTURE(line);
        for (const char* text : {"deed_of(", "text_of(blame", "text_of(*error.blame"})
          CHECK(line.find(text) == std::string::npos);
      }
}

// CMake merges CUDA sources from 3.31 on, and kernels of several files have parameters of the same
// names: lockstep_gpu_sources keeps them apart.
TEST_CASE("limits: .cu files are sources by lockstep_gpu_sources, or listed by file(GLOB)") {
  const std::regex word("([a-z_]+)\\(|\\.cu\\b");
  int seen = 0;
  for (const std::string& file : files_of_tree()) {
    if (!file.ends_with("CMakeLists.txt") && !file.ends_with(".cmake")) continue;
    CAPTURE(file);
    std::string call;  // whose arguments these are
    for (const std::string& line : lines_of_file(file)) {
      CAPTURE(line);
      const std::string code = line.substr(0, line.find('#'));
      for (std::sregex_iterator at(code.begin(), code.end(), word), end; at != end; ++at) {
        if ((*at)[1].matched) {
          call = (*at)[1];
        } else {
          ++seen;
          CHECK((call == "lockstep_gpu_sources" || call == "file" || call == "list"));
        }
      }
    }
  }
  CHECK(seen >= 4);
}

TEST_CASE("limits: no folder has more than 25 files") {
  std::map<std::string, int> files;
  for (const std::string& file : files_of_tree())
    ++files[std::filesystem::path(file).parent_path()];
  // These have more still. A folder that is mended leaves the list.
  const std::set<std::string> not_yet = {};
  for (const auto& entry : files) {
    CAPTURE(entry.first);
    CHECK((entry.second > 25) == not_yet.contains(entry.first));
  }
}

TEST_CASE("limits: sources and scripts have at most 100 columns") {
  for (const std::string& file : files_of_tree()) {
    const std::string name = std::filesystem::path(file).filename();
    const bool script = name == "lockstep" || name == "CMakeLists.txt" || name.ends_with(".sh") ||
                        name.ends_with(".py") || name.ends_with(".cmake");
    if (!script && !is_source(file)) continue;
    CAPTURE(file);
    std::size_t number = 0;
    for (const std::string& line : lines_of_file(file)) {
      ++number;
      if (width_of(line) > 100) FAIL_CHECK("line ", number);
    }
  }
}

TEST_CASE("limits: prose has at most 100 columns") {
  CHECK(long_lines({std::string(101, 'x'), "|" + std::string(100, 'x')}).size() == 1);
  CHECK(long_lines({"```", std::string(101, 'x'), "```", std::string(101, 'x')}).size() == 1);
  CHECK(long_lines({"[a](" + std::string(100, 'x') + ") b"}).empty());
  // These have longer lines still. A document that is mended leaves the list.
  const std::set<std::string> not_yet = {};
  for (const std::string& file : files_of_tree()) {
    if (!file.ends_with(".md")) continue;
    CAPTURE(file);
    const std::vector<std::size_t> found = long_lines(lines_of_file(file));
    if (not_yet.contains(file)) {
      CHECK_MESSAGE(!found.empty(), "it is no longer too long: take it off the list");
    } else {
      for (const std::size_t line : found) FAIL_CHECK("line ", line);
    }
  }
}

TEST_CASE("limits: the first reading has at most 1,850 lines") {
  const Ended ended = shell("'" LOCKSTEP_SOURCE_DIR "/tools/first_reading.sh'");
  CHECK_MESSAGE(ended.code == 0, ended.out);
  CHECK(contains(ended.out, " total"));
}

TEST_CASE("format: every source is as clang-format 14 writes it") {
  // Other versions break lines in other places.
  std::string program;
  for (const std::string name : {"clang-format-14", "clang-format"})
    if (program.empty() && contains(shell(name + " --version").out, "version 14.")) program = name;
  if (program.empty()) {
    MESSAGE("skipped: there is no clang-format 14");
    return;
  }
  std::string command = "cd '" LOCKSTEP_SOURCE_DIR "' && " + program + " --dry-run -Werror";
  for (const std::string& file : files_of_tree())
    if (is_source(file)) command += " '" + file + "'";
  const Ended ended = shell(command);
  CHECK_MESSAGE(ended.code == 0, ended.out);
}
