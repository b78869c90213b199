// lockstep-run and the signals of a terminal and a shell: Ctrl-Z, nohup, and the time to end.

#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

#include "support/program.h"
#include "support/temporary_folder.h"

using namespace lockstep::test;

namespace {

/// "S" for a process that sleeps, "T" for one that is stopped, and so on (proc(5)); and its name.
struct State {
  char letter = '?';
  std::string name;
};
State state_of(pid_t process) {
  const std::string line = text_in_proc("/proc/" + std::to_string(process) + "/stat");
  const std::size_t open = line.find('('), close = line.rfind(')');
  if (close == std::string::npos || close + 2 >= line.size()) return {};
  return {line[close + 2], line.substr(open + 1, close - open - 1)};
}

/// Whether all processes of the job but the guardian are stopped, or none is, within a minute.
bool wait_until_stopped(const Process& job, bool stopped) {
  for (int k = 0; k < 12000; ++k) {
    bool all = true;
    for (const pid_t process : job.family()) {
      const State state = state_of(process);
      // A child that ended just before its parent was stopped stays a zombie until fg. A shell
      // whose child was stopped between vfork and exec waits for it, in D.
      const bool counts = state.name != "lockstep-guard" && state.letter != 'Z';
      const bool halts = state.letter == 'T' || (stopped && state.letter == 'D');
      all &= !counts || halts == stopped;
    }
    if (all) return true;
    ::usleep(5000);
  }
  return false;
}

/// The command with a signal ignored, as nohup and scripts' background jobs have it.
std::vector<std::string> ignoring(const std::string& signal, std::vector<std::string> command) {
  const std::vector<std::string> shell = {"sh", "-c", "trap '' " + signal + "; exec \"$@\"", "sh"};
  command.insert(command.begin(), shell.begin(), shell.end());
  return command;
}

}  // namespace

TEST_CASE("launch: Ctrl-Z stops all ranks and their children, and fg lets them continue") {
  const TemporaryFolder folder;
  const std::string flag = folder / "flag";
  Process job(launched(3, "sleep 1000 & child=$!; echo ready; while [ ! -e " + flag +
                              " ]; do sleep 0.01; done; kill $child; echo done"));
  job.wait_for_output("ready", 3);
  for (int times = 0; times < 2; ++times) {
    kill(job.id(), SIGTSTP);
    CHECK(wait_until_stopped(job, true));
    CHECK(job.family().size() >= 3 * 2 + 2);
    if (times == 1) std::ofstream(flag) << "";  // nobody sees it yet
    CHECK_FALSE(contains(job.out(), "done"));
    kill(job.id(), SIGCONT);
    if (times == 0) CHECK(wait_until_stopped(job, false));
  }
  const Ended ended = job.wait();
  CHECK(ended.code == 0);
  CHECK(count(ended.out, "done") == 3);
  CHECK(ended.err.empty());
}

TEST_CASE("launch: a stop does not use up the grace period") {
  const TemporaryFolder folder;
  const std::string flag = folder / "flag";
  Process job(launched(2,
                       "trap 'echo trapped; while [ ! -e " + flag +
                           " ]; do sleep 0.01; done; echo saved; exit 0' TERM; echo ready; "
                           "while :; do sleep 0.05; done",
                       {"--grace", "3"}));
  job.wait_for_output("ready", 2);
  kill(job.id(), SIGTERM);
  job.wait_for_output("trapped", 2);
  kill(job.id(), SIGTSTP);
  CHECK(wait_until_stopped(job, true));
  ::sleep(4);  // longer than that
  std::ofstream(flag) << "";
  kill(job.id(), SIGCONT);
  CHECK(count(job.wait().out, "saved") == 2);
}

TEST_CASE("launch: --verbose tells the process of each rank") {
  const Ended ended = run(launched(3, "echo rank $RANK: process $$", {"--verbose"}));
  CHECK(ended.code == 0);
  for (const std::string& line : lines_of(ended.out)) CHECK(contains(ended.err, line + "\n"));
  CHECK(count(ended.err, ": process ") == 4);  // and the launcher's
}

TEST_CASE("launch: ranks that succeed, but leave replicas that differ, fail the job") {
  const auto leave = [](std::uint64_t of_rank_2) {
    return run(launched(3, "if [ $RANK = 2 ]; then " + leaves_replica(7, of_rank_2) + "else " +
                               leaves_replica(7, 5) + "fi"));
  };
  const Ended equal = leave(5), different = leave(6);
  CHECK(equal.code == 0);
  CHECK(equal.err.empty());
  CHECK(different.code == 1);
  CHECK(contains(different.err, "error: rank 2 ended with another replica than ranks 0, 1"));
}

TEST_CASE("launch: a stopped job can be ended") {
  for (const int number : {SIGTERM, SIGKILL}) {
    CAPTURE(number);
    Process job(launched(2, "echo ready; exec sleep 1000"));
    job.wait_for_output("ready", 2);
    kill(job.id(), SIGTSTP);
    CHECK(wait_until_stopped(job, true));
    kill(job.id(), number);
    if (number == SIGTERM) kill(job.id(), SIGCONT);
    const Ended ended = job.wait();
    CHECK(ended.code == (number == SIGTERM ? 143 : -1));
    job.wait_for_empty_family();
  }
}

TEST_CASE("launch: under nohup a hangup ends nothing; an ignored SIGINT is acted on") {
  const TemporaryFolder folder;
  const std::string flag = folder / "flag";
  const auto command = launched(2, "trap 'echo saved; exit 0' INT; echo ready; while [ ! -e " +
                                       flag + " ]; do sleep 0.01; done; echo done");
  {
    Process job(ignoring("HUP TSTP", command));
    job.wait_for_output("ready", 2);
    kill(job.id(), SIGHUP);
    kill(job.id(), SIGTSTP);
    std::ofstream(flag) << "";
    const Ended ended = job.wait();
    CHECK(ended.code == 0);
    CHECK(count(ended.out, "done") == 2);
  }
  std::filesystem::remove(flag);
  Process job(ignoring("INT", command));
  job.wait_for_output("ready", 2);
  kill(job.id(), SIGINT);
  const Ended ended = job.wait();
  CHECK(ended.code == 130);
  CHECK(count(ended.out, "saved") == 2);
}

TEST_CASE("launch: ranks have as long to end as --grace says" * doctest::test_suite("slow")) {
  // Longer than the two seconds that they have by default.
  const std::string slow = "trap 'sleep 4; echo saved; exit 0' TERM; echo ready; ";
  for (const bool by_failure : {false, true}) {
    CAPTURE(by_failure);
    Process job(launched(
        2, slow + (by_failure ? "[ $RANK = 1 ] && exit 3; " : "") + "while :; do sleep 0.05; done",
        {"--grace", "60"}));
    job.wait_for_output("ready", 2);
    if (!by_failure) kill(job.id(), SIGTERM);
    const Ended ended = job.wait();
    CHECK(ended.code == (by_failure ? 3 : 143));
    CHECK(count(ended.out, "saved") == (by_failure ? 1 : 2));
  }
  const Ended none =
      run(launched(2, "[ $RANK = 1 ] && exit 3; " + slow + "sleep 1000 & wait", {"--grace", "0"}));
  CHECK(none.code == 3);
  CHECK_FALSE(contains(none.out, "saved"));
  for (const char* bad : {"-1", "x", "", "nan", "inf", "86401"}) {
    const Ended ended = run(launched(1, "true", {"--grace", bad}));
    CAPTURE(ended.err);
    CHECK(ended.code == 2);
    CHECK(lines_of(ended.err).size() == 1);
    CHECK(contains(ended.err, "grace"));
  }
  CHECK(run({LOCKSTEP_BIN_DIR "/train_mlp", "--grace", "-1"}).code == 2);
}
