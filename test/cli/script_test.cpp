// The script ./lockstep, as far as it needs no build: what it says to bad usage.

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "support/program.h"
#include "support/temporary_folder.h"

using namespace lockstep::test;

namespace {
const std::string script = LOCKSTEP_SOURCE_DIR "/lockstep";
}

TEST_CASE("lockstep: help goes to stdout, bad usage to stderr with code 2") {
  for (const char* word : {"help", "--help", "-h"}) {
    const Ended help = run({script, word});
    CHECK(help.code == 0);
    CHECK(help.err.empty());
    CHECK(contains(help.out, "./lockstep COMMAND"));
  }
  const Ended nothing = run({script});
  CHECK(nothing.code == 2);
  CHECK(nothing.out.empty());
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"trian"},
                                             {"bench", "stpe"},
                                             {"sample", "../x"},
                                             {"sample", "nosuch"},
                                             {"test", "--sanitize", "memory"},
                                             {"test", "--only", "dist,../x"},
                                             {"test", "--only", "nosuch"},
                                             {"drill", "nosuch"},
                                             {"drill", "collectives", "--runs", "x"},
                                             {"drill", "collectives", "--runs", "0"}}) {
    std::vector<std::string> command{script};
    command.insert(command.end(), arguments.begin(), arguments.end());
    const Ended ended = run(command);
    CAPTURE(ended.err);
    CHECK(ended.code == 2);
    CHECK(ended.out.empty());
    CHECK(lines_of(ended.err).size() == 1);
    CHECK(contains(ended.err, "'" + arguments.back() + "'"));
  }
}

TEST_CASE("lockstep: warnings are errors in CI and for sanitizers, not for users") {
  const TemporaryFolder folder;
  std::filesystem::copy(script, folder.path());
  std::filesystem::create_directories(folder / "test/core");
  std::filesystem::create_directory(folder / "bin");
  // A cmake that only tells what it was asked for, on a system that has every package.
  const auto program = [&](const std::string& name, const std::string& text) {
    std::ofstream(folder / ("bin/" + name)) << "#!/bin/sh\n" << text;
    std::filesystem::permissions(folder / ("bin/" + name), std::filesystem::perms::owner_all);
  };
  std::ofstream(folder / "test/core/some_test.cpp");
  program("dpkg-query", "for package; do printf '%s/installed ' \"$package\"; done\n");
  program("cmake", "echo \"asked for: $*\" >&2; exit 1\n");
  const auto asked = [&](const std::string& ci, const std::vector<std::string>& arguments) {
    const std::string path = "PATH=" + (folder / "bin") + ":" + std::getenv("PATH");
    std::vector<std::string> command{"env", "CI=" + ci, path, folder / "lockstep"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    const Ended ended = run(command);
    CHECK(ended.code == 1);
    CHECK(contains(ended.err, "asked for: "));
    return contains(ended.err, "-DLOCKSTEP_WERROR=ON");
  };
  CHECK_FALSE(asked("", {"train"}));
  CHECK(asked("true", {"train"}));
  CHECK(asked("", {"test", "--sanitize", "thread", "--only", "core"}));
}
