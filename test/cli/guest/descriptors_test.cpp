// Wrappers between lockstep-run and the program that use or close descriptors.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <fstream>
#include <string>
#include <vector>

#include "support/program.h"
#include "support/temporary_folder.h"

namespace lockstep::test::guest_descriptors {
namespace {

const std::string joined = LOCKSTEP_BIN_DIR "/joined";

bool has(const std::string& program) {
  if (run({"sh", "-c", "command -v " + program}).code == 0) return true;
  MESSAGE("skipped: there is no ", program);
  return false;
}

void check_world(const Ended& ended, int ranks) {
  CAPTURE(ended.err);
  CHECK(ended.code == 0);
  for (int r = 0; r < ranks; ++r)
    CHECK(count(ended.out, fmt::format("rank {} of {}\n", r, ranks)) == 1);
}

/// Ranks whose program a Python script starts. `work` may use `numbers`, the launcher's
/// descriptors, and `command`.
std::vector<std::string> in_python(const std::string& work, const std::string& command = joined) {
  const std::string script =
      "import os, subprocess, sys\n"
      "names = ('LOCKSTEP_TOKEN_FD', 'LOCKSTEP_ERROR_FD', 'LOCKSTEP_SURVIVE_FD')\n"
      "numbers = [int(os.environ[n]) for n in names if n in os.environ]\n"
      "command = ['" +
      command + "']\n" + work;
  return {LOCKSTEP_BIN_DIR "/lockstep-run", "-n", "2", "python3", "-c", script};
}

}  // namespace

TEST_CASE("guest: a shell between launcher and program may use or close its descriptors") {
  const TemporaryFolder folder;
  const std::string log = folder / "log";
  for (const std::string& script :
       {"exec 4>" + log, "exec 3>" + log + " 4>&3 5>&3 6>&3 7>&3 8>&3 9>&3",
        std::string("exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-"),
        "exec 3<" LOCKSTEP_BIN_DIR "/joined 5<&3 4>" + log + "; ulimit -n 600"}) {
    CAPTURE(script);
    check_world(run(launched(2, script + "; exec " + joined)), 2);
    check_world(run(launched(2, script + "; " + joined + " split", {"--survive"})), 2);
  }
  // Few descriptors, from the launcher on.
  check_world(
      run({"sh", "-c", "ulimit -n 64; exec " LOCKSTEP_BIN_DIR "/lockstep-run -n 2 " + joined}), 2);
}

TEST_CASE("guest: a wrapper may use all low descriptors, and need not know ours") {
  if (!has("python3")) return;
  check_world(run(in_python("os.closerange(3, 256)\n"
                            "for n in range(3, 256): os.dup2(1, n)\n"
                            "os.execv(command[0], command)\n")),
              2);
  check_world(run(in_python("sys.exit(subprocess.call(command, close_fds=False))\n")), 2);
  check_world(run(in_python("sys.exit(subprocess.call(command, pass_fds=numbers))\n")), 2);
}

TEST_CASE("guest: a wrapper that closes our descriptors is told what to do") {
  if (!has("python3")) return;
  for (const char* work : {"sys.exit(subprocess.call(command))\n",
                           "os.closerange(3, 1 << 20)\nos.execv(command[0], command)\n",
                           "sys.exit(subprocess.call(command, pass_fds=numbers[:1]))\n",
                           "sys.exit(subprocess.call(command, pass_fds=numbers[1:]))\n"}) {
    CAPTURE(work);
    const Ended ended = run(in_python(work));
    CAPTURE(ended.err);
    CHECK(ended.code == 2);
    CHECK(contains(ended.err, "is closed here, not what lockstep-run has left open"));
    CHECK(contains(ended.err, "pass_fds=["));
    CHECK(ended.out.empty());
  }
}

TEST_CASE("guest: what has the number of one of our descriptors is not taken for it") {
  if (!has("python3")) return;
  const TemporaryFolder folder;
  const std::string file = folder / "file";
  for (const char* number : {"numbers[0]", "numbers[1]", "numbers[2]"})
    for (const char* other : {"os.open(path, os.O_RDWR | os.O_CREAT)", "os.pipe()[1]",
                              "os.open('/dev/null', os.O_RDWR)"}) {
      CAPTURE(number);
      CAPTURE(other);
      std::ofstream(file) << std::string(1000, 'x');
      auto command =
          in_python(fmt::format("path = '{}'\nos.dup2({}, {})\n"
                                "os.execv(command[0], command)\n",
                                file, other, number));
      command.insert(command.begin() + 3, "--survive");
      const Ended ended = run(command);
      CAPTURE(ended.err);
      CHECK(ended.code == 2);
      CHECK(contains(ended.err, "is another file here, not what lockstep-run has left open"));
      CHECK(text_in_proc(file) == std::string(1000, 'x'));  // nobody has written into it
    }
}

TEST_CASE("guest: what a rank starts is no rank, and does not have its descriptors") {
  const auto with_child = [](const std::string& command) {
    return run({LOCKSTEP_BIN_DIR "/lockstep-run", "-n", "2", joined, "child", command});
  };
  const Ended inherits = with_child(joined);
  CAPTURE(inherits.err);
  CHECK(inherits.code == 2);
  CHECK(contains(inherits.err, "If this program is no rank, start it without RANK and WORLD_SIZE"));
  const Ended alone = with_child("env -u RANK -u WORLD_SIZE " + joined);
  CAPTURE(alone.err);
  CHECK(alone.code == 0);
  CHECK(count(alone.out, "rank 0 of 1\n") == 2);
  // Nor does what it leaves behind keep the launcher waiting for records.
  const Ended looks = with_child(
      "for n in $LOCKSTEP_TOKEN_FD $LOCKSTEP_ERROR_FD; do ls /proc/self/fd | grep -qx $n && echo "
      "has $n; done; true");
  CHECK(looks.code == 0);
  CHECK_FALSE(contains(looks.out, "has "));
}

}  // namespace lockstep::test::guest_descriptors
