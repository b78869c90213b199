// The script ./lockstep, as far as it needs no build: what it says to bad usage.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "support/program.h"
#include "support/temporary_folder.h"

using namespace lockstep::test;

namespace {

const std::string script = LOCKSTEP_SOURCE_DIR "/lockstep";
using Words = std::vector<std::string>;

/// A copy of the script alone, on a system that has every package, and programs that we write.
class FakeSystem {
 public:
  FakeSystem() {
    std::filesystem::copy(script, folder_.path());
    std::filesystem::create_directory(folder_ / "bin");
    program("bin/dpkg-query", "for package; do printf '%s/installed ' \"$package\"; done\n");
  }
  std::string operator/(const std::string& name) const { return folder_ / name; }
  void program(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(folder_ / name).parent_path());
    std::ofstream(folder_ / name) << "#!/bin/sh\n" << text;
    std::filesystem::permissions(folder_ / name, std::filesystem::perms::owner_all);
  }
  Ended lockstep(const Words& arguments, const std::string& ci = "") const {
    const std::string path = "PATH=" + (folder_ / "bin") + ":" + std::getenv("PATH");
    Words command{"env", "CI=" + ci, path, folder_ / "lockstep"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return run(command);
  }

 private:
  TemporaryFolder folder_;
};

}  // namespace

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

TEST_CASE("lockstep sample: without a name it lists them all, with what they show") {
  const Ended listed = run({script, "sample"});
  CHECK(listed.code == 0);
  CHECK(listed.err.empty());
  std::map<std::string, std::string> said;
  for (const std::string& line : lines_of(listed.out))
    said[line.substr(0, line.find(' '))] = line.substr(line.find_last_of(' ') + 1);
  int samples = 0;
  for (const auto& entry : std::filesystem::directory_iterator(LOCKSTEP_SOURCE_DIR "/samples")) {
    if (entry.path().extension() != ".cpp") continue;
    CAPTURE(entry.path());
    CHECK(!said[entry.path().stem()].empty());
    ++samples;
  }
  CHECK(lines_of(listed.out).size() == static_cast<std::size_t>(samples));
}

TEST_CASE("lockstep: each kind of build is the preset of its name, stricter in CI") {
  const FakeSystem system;
  std::filesystem::create_directories(system / "test/core");
  std::ofstream(system / "test/core/some_test.cpp");
  system.program("bin/cmake", "echo \"asked for: $* .\" >&2; exit 1\n");
  std::ifstream file(LOCKSTEP_SOURCE_DIR "/CMakePresets.json");
  const auto presets = nlohmann::json::parse(file)["configurePresets"];
  const std::string strict = "-DLOCKSTEP_WERROR=ON";
  for (const auto& [name, arguments] : std::map<std::string, Words>{
           {"cpu", {"train", "--device", "cpu"}},
           {"sim", {"bench", "step", "--device=sim"}},
           {"asan", {"test", "--sanitize", "address", "--only", "core"}},
           {"tsan", {"test", "--sanitize", "thread", "--only", "core"}},
           {"sim-asan", {"test", "--device", "sim", "--sanitize", "address", "--only", "core"}},
           {"package", {"package"}}}) {
    CAPTURE(name);
    const Ended usual = system.lockstep(arguments);
    CHECK(usual.code == 1);
    CHECK(contains(usual.err, "--preset " + name + " ."));
    const Ended ci = system.lockstep(arguments, "true");
    CHECK(contains(ci.err, "--preset " + name + " " + strict));
    CHECK(std::ranges::any_of(presets, [&](const auto& one) { return one["name"] == name; }));
  }
}

TEST_CASE("lockstep: a GPU that is not there is missed before anything is built") {
  if (std::filesystem::exists("/dev/nvidia0")) return;
  const FakeSystem system;
  for (const Words& arguments : std::vector<Words>{{"train", "--device", "cuda"},
                                                   {"bench", "step", "--device=cuda"},
                                                   {"test", "--device", "cuda"}}) {
    const Ended ended = system.lockstep(arguments);
    CHECK(ended.code == 2);
    CHECK(lines_of(ended.err).size() == 1);
    CHECK(contains(ended.err, "no NVIDIA GPU"));
    CHECK_FALSE(std::filesystem::exists(system / "build"));
  }
}

TEST_CASE("lockstep: a build says that it builds, also where there is no terminal") {
  const FakeSystem system;
  const Words train{"train", "--device", "cpu"};
  system.program("build/cpu/bin/train_mlp", "echo trained\n");
  std::ofstream(system / "build/cpu/build.ninja");
  const std::string log = system / "build/cpu/build.log)";

  system.program("bin/ninja", "echo 'ninja: no work to do.'\n");
  const Ended nothing = system.lockstep(train);
  CHECK(nothing.out == "trained\n");
  CHECK(nothing.err.empty());

  system.program("bin/ninja", "echo '[1/2] Building a.o'; echo '[2/2] Linking b'\n");
  CHECK(system.lockstep(train).err == "lockstep: building train_mlp (1/2, log in " + log + "\n");

  // The first source may take long.
  system.program("bin/ninja", "sleep 3; echo '[1/1] Building a.o'\n");
  CHECK(system.lockstep(train).err == "lockstep: building train_mlp (starts, log in " + log + "\n");
}

TEST_CASE("lockstep: two builds of one folder take turns, those of two folders do not wait") {
  const FakeSystem system;
  for (const char* const kind : {"cpu", "sim"}) {
    system.program(fmt::format("build/{}/bin/train_mlp", kind), "echo trained\n");
    std::ofstream(system / fmt::format("build/{}/build.ninja", kind));
  }
  const auto both = [&](const Words& first, const Words& second) {
    Ended other;
    std::thread beside([&] { other = system.lockstep(second); });
    const Ended one = system.lockstep(first);
    beside.join();
    for (const Ended& ended : {one, other}) {
      CAPTURE(ended.err);
      CHECK(ended.code == 0);
    }
  };
  const Words cpu{"train", "--device", "cpu"}, sim{"train", "--device", "sim"};
  system.program("bin/ninja", "mkdir $2/mine && sleep 1 && rmdir $2/mine\n");  // $1 is -C
  both(cpu, cpu);
  // Each waits until the other has begun.
  system.program("bin/ninja",
                 "touch $2/begun\n"
                 "for k in $(seq 300); do [ -e $2/../cpu/begun -a -e $2/../sim/begun ] && exit; "
                 "sleep 0.1; done; exit 1\n");
  both(cpu, sim);
}

TEST_CASE(
    "lockstep: a package that is installed while a folder is configured is looked for again") {
  const FakeSystem system;
  system.program("bin/sudo", "[ \"$1\" = -n ] && shift; exec \"$@\"\n");
  system.program("bin/apt-get",
                 "case \"$*\" in *openmpi*) : > \"" + (system / "has-mpi") + "\"; esac\n");
  system.program("bin/dpkg-query", "for package; do case $package in *openmpi*) [ -e \"" +
                                       (system / "has-mpi") +
                                       "\" ] || continue; esac; "
                                       "printf '%s/installed ' \"$package\"; done\n");
  // cmake -S ROOT: looks first, and is slow.
  system.program("bin/cmake",
                 "mpi=no; [ -e $2/has-mpi ] && mpi=yes; : > $2/cmake-runs; sleep 3; "
                 "echo $mpi > $2/build/cpu/build.ninja\n");
  system.program("bin/ninja", "exit 0\n");
  system.program("bin/ctest", "exit 0\n");
  system.program("build/cpu/bin/train_mlp", "exit 0\n");
  std::thread first([&] { system.lockstep({"train", "--device", "cpu"}); });
  while (!std::filesystem::exists(system / "cmake-runs"))
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const Ended second = system.lockstep({"test", "--device", "cpu"});
  first.join();
  CAPTURE(second.err);
  std::string mpi;
  std::ifstream(system / "build/cpu/build.ninja") >> mpi;
  CHECK(mpi == "yes");
}
