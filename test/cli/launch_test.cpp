// lockstep-run with real processes: what the ranks find, how their ends become one exit code, and
// that nothing is left. No test depends on how long something takes, except for the deadline of a
// minute.

#include "lockstep/launch/launch.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "support/capture_binding.h"
#include "support/program.h"
#include "support/temporary_folder.h"

using namespace lockstep::test;

namespace {

const std::string program = LOCKSTEP_BIN_DIR "/lockstep-run";

// The value of `name` in lines `name=value`, one for each rank; all ranks must agree.
std::string agreed(const std::string& out, const std::string& name, int ranks) {
  std::set<std::string> values;
  int found = 0;
  for (const std::string& line : lines_of(out))
    if (line.starts_with(name + "=")) values.insert(line.substr(name.size() + 1)), ++found;
  CAPTURE(name);
  CHECK(found == ranks);
  REQUIRE(values.size() == 1);
  return *values.begin();
}

// Made unique per test: the folder of one job must not be taken for that of another.
std::string store_path(const std::string& out, int ranks) {
  const std::string rendezvous = agreed(out, "LOCKSTEP_RENDEZVOUS", ranks);
  REQUIRE(rendezvous.starts_with("unix:/"));
  return rendezvous.substr(5);
}

}  // namespace

TEST_CASE("launch: what every rank finds in its environment") {
  for (int ranks : {1, 2, 7}) {
    CAPTURE(ranks);
    const Ended ended =
        run(launched(ranks, "env | grep -v ^LOCKSTEP_TEST; echo id=$RANK/$LOCAL_RANK"),
            {"RANK=77", "WORLD_SIZE=78", "OMP_NUM_THREADS=3"});
    REQUIRE(ended.code == 0);
    CHECK(ended.err.empty());
    for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"})
      CHECK(agreed(ended.out, name, ranks) == std::to_string(ranks));
    CHECK(agreed(ended.out, "GROUP_RANK", ranks) == "0");
    CHECK(agreed(ended.out, "MASTER_ADDR", ranks) == "127.0.0.1");
    CHECK(agreed(ended.out, "OMP_NUM_THREADS", ranks) == "3");
    const int port = std::stoi(agreed(ended.out, "MASTER_PORT", ranks));
    CHECK((port > 0 && port < 65536));
    CHECK(agreed(ended.out, "LOCKSTEP_JOB", ranks).size() == 16);
    for (int rank = 0; rank < ranks; ++rank) {
      const std::string mine = std::to_string(rank);
      CHECK(count(ended.out, "id=" + mine + "/" + mine + "\n") == 1);
    }
  }
}

TEST_CASE("launch: one thread per rank unless the user says otherwise") {
  const Ended ended = run(
      {"env", "-u", "OMP_NUM_THREADS", program, "-n", "2", "sh", "-c", "echo $OMP_NUM_THREADS"});
  CHECK(ended.out == "1\n1\n");
}

TEST_CASE("launch: the token is one secret per job, the folder private and gone afterwards") {
  const std::string script =
      "echo LOCKSTEP_RENDEZVOUS=$LOCKSTEP_RENDEZVOUS; f=${LOCKSTEP_RENDEZVOUS#unix:}; "
      "echo MODE=$(stat -c %a $(dirname $f)); [ $RANK = 0 ] && touch $f; "
      "echo TOKEN=$(sha256sum < /proc/self/fd/$LOCKSTEP_TOKEN_FD | cut -c1-64); "
      "echo SIZE=$(wc -c < /proc/self/fd/$LOCKSTEP_TOKEN_FD)";
  const Ended first = run(launched(3, script)), second = run(launched(3, script));
  REQUIRE(first.code == 0);
  CHECK(agreed(first.out, "MODE", 3) == "700");
  CHECK(agreed(first.out, "SIZE", 3) == "32");
  CHECK(agreed(first.out, "TOKEN", 3) != agreed(second.out, "TOKEN", 3));
  CHECK(store_path(first.out, 3) != store_path(second.out, 3));
  CHECK_FALSE(
      std::filesystem::exists(std::filesystem::path(store_path(first.out, 3)).parent_path()));
}

TEST_CASE("launch: arguments reach the program untouched, stdin is empty") {
  CHECK(run({program, "-n", "1", "printf", "<%s>", "-n", "--prefix", "a b", "", "--"}).out ==
        "<-n><--prefix><a b><><-->");
  CHECK(run({program, "-n", "1", "--", "printf", "<%s>", "--help"}).out == "<--help>");
  CHECK(run(launched(2, "cat; echo end")).out == "end\nend\n");
}

TEST_CASE("launch: exit codes") {
  for (const auto& [script, code] :
       std::vector<std::pair<std::string, int>>{{"exit 0", 0},
                                                {"exit 1", 1},
                                                {"exit 7", 7},
                                                {"exit 127", 1},
                                                {"exit 255", 1},
                                                {"kill -SEGV $$", 1}}) {
    CAPTURE_BINDING(script);
    CHECK(run(launched(2, "[ $RANK = 0 ] && exit 0; " + script)).code == code);
  }
}

TEST_CASE("launch: bad usage is one line and code 2") {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{},
                                             {"true"},
                                             {"-n", "0", "true"},
                                             {"-n", "-1", "true"},
                                             {"-n", "4097", "true"},
                                             {"-n", "x", "true"},
                                             {"-n", "2"},
                                             {"-n", "2", "--"},
                                             {"-n", "2", "--bogus", "true"},
                                             {"-n"}}) {
    std::vector<std::string> command{program};
    command.insert(command.end(), arguments.begin(), arguments.end());
    const Ended ended = run(command);
    CAPTURE(ended.err);
    CHECK(ended.code == 2);
    CHECK(ended.out.empty());
    CHECK(lines_of(ended.err).size() == 1);
  }
}

TEST_CASE("launch: an option with an empty value is refused by name, the program's own are not") {
  for (const char* option : {"--rendezvous", "--interface", "--secret-file", "--nnodes"}) {
    const std::string joined = std::string(option) + "=";
    for (const std::vector<std::string>& arguments :
         {std::vector<std::string>{option, "", "true"}, {joined, "true"}, {joined, "true", "x"}}) {
      std::vector<std::string> command{program, "-n", "1"};
      command.insert(command.end(), arguments.begin(), arguments.end());
      const Ended ended = run(command);
      CAPTURE(ended.err);
      CHECK(ended.code == 2);
      CHECK(lines_of(ended.err).size() == 1);
      CHECK(contains(ended.err, option));
    }
  }
  CHECK(run({program, "-n", "1", "printf", "<%s>", "--json=", ""}).out == "<--json=><>");
}

TEST_CASE("launch: a program that cannot be started") {
  const Ended missing = run({program, "-n", "3", "no-such-program", "x"});
  CHECK(missing.code == 1);
  CHECK(missing.err == "error: cannot start 'no-such-program': No such file or directory\n");
  CHECK(contains(run({program, "-n", "2", "/"}).err, "cannot start '/': Permission denied"));
}

TEST_CASE("launch: a killed rank ends the run and is named" * doctest::test_suite("slow")) {
  for (int victim : {0, 1, 2}) {
    CAPTURE(victim);
    Process job(launched(3, "echo rank $RANK is $$.; exec sleep 1000"));
    job.wait_for_output("rank", 3);
    const std::string name = "rank " + std::to_string(victim);
    const std::string out = job.out();
    kill(std::stoi(out.substr(out.find(name + " is ") + name.size() + 4)), SIGKILL);
    const Ended ended = job.wait();
    CHECK(ended.code == 1);
    CHECK(ended.err ==
          "error: " + name + " was killed by signal 9 (Killed): perhaps out of memory\n");
    CHECK(job.family().empty());
  }
}

TEST_CASE("launch: ranks and their children that ignore SIGTERM are killed" *
          doctest::test_suite("slow")) {
  Process job(
      launched(3, "trap '' TERM; [ $RANK = 1 ] && exit 4; sleep 1000 & sleep 1000; sleep 1000"));
  const Ended ended = job.wait();
  CHECK(ended.code == 4);
  CHECK(ended.err == "error: rank 1 failed with exit code 4\n");
  CHECK(job.family().empty());
}

TEST_CASE("launch: a stopped rank is ended as well" * doctest::test_suite("slow")) {
  Process job(launched(2, "[ $RANK = 1 ] && { echo x > /dev/null; exit 3; }; kill -STOP $$"));
  CHECK(job.wait().code == 3);
  CHECK(job.family().empty());
}

TEST_CASE("launch: what a rank leaves behind after success is killed too" *
          doctest::test_suite("slow")) {
  Process job(launched(2, "sleep 1000 & exit 0"));
  CHECK(job.wait().code == 0);
  CHECK(job.family().empty());
}

TEST_CASE("launch: the cause is reported, not a consequence that came first") {
  const TemporaryFolder folder;
  const std::string flag = folder / "flag";
  const std::string wait = "while [ ! -e " + flag + " ]; do sleep 0.01; done; ";
  const std::string consequence =
      tells_failure(true, "[all_reduce] rank 0: rank 1 is gone") + "touch " + flag + "; exit 1";
  {
    const Ended ended = run(launched(2, "if [ $RANK = 1 ]; then " + wait +
                                            tells_failure(false, "[load_idx] no such file") +
                                            "exit 2; fi; " + consequence));
    CHECK(ended.code == 2);
    CHECK(ended.err == "error: [load_idx] no such file (reported by rank 1)\n");
  }
  std::filesystem::remove(flag);
  {
    const Ended ended =
        run(launched(2, "[ $RANK = 1 ] && { " + wait + " kill -9 $$; }; " + consequence));
    CHECK(ended.code == 1);
    CHECK(ended.err == "error: rank 1 was killed by signal 9 (Killed): perhaps out of memory\n");
  }
}

TEST_CASE("launch: nothing is added to what a rank has said itself") {
  const Ended ended = run(
      launched(2, "[ $RANK = 0 ] && echo replicas differ; " + tells_failure(false, "") + "exit 3"));
  CHECK(ended.code == 3);
  CHECK(ended.out == "replicas differ\n");
  CHECK(ended.err.empty());
}

TEST_CASE("launch: without stdout") {
  const Ended ended = run({"sh", "-c", program + " -n 2 true >&-"});
  CHECK(ended.code == 1);
  CHECK(ended.err == "error: cannot write to stdout: it is closed\n");
}

TEST_CASE("launch: stderr of other ranks is held back, its end shown for the failed one") {
  const Ended good = run(launched(3, "echo note $RANK >&2"));
  CHECK(good.code == 0);
  CHECK(good.err == "note 0\n");

  const Ended bad = run(launched(3,
                                 "[ $RANK = 2 ] || exit 0; for i in $(seq 30); do echo line $i "
                                 ">&2; done; printf end >&2; exit 9"));
  CHECK(bad.code == 9);
  CHECK(lines_of(bad.err).size() == 21);
  CHECK(lines_of(bad.err).front() ==
        "error: rank 2 failed with exit code 9; the end of its stderr:");
  CHECK(contains(bad.err, "  line 12\n"));
  CHECK_FALSE(contains(bad.err, "line 11\n"));
  CHECK(lines_of(bad.err).back() == "  end");
}

TEST_CASE("launch: --prefix puts the rank in front of every line") {
  const Ended ended =
      run(launched(3, "echo out $RANK; echo err $RANK >&2; printf 'no newline'", {"--prefix"}));
  CHECK(ended.code == 0);
  for (const std::string rank : {"0", "1", "2"}) {
    CHECK(count(ended.out, "[" + rank + "] out " + rank + "\n") == 1);
    CHECK(count(ended.out, "[" + rank + "] no newline\n") == 1);
    CHECK(count(ended.err, "[" + rank + "] err " + rank + "\n") == 1);
  }
  CHECK(lines_of(ended.out).size() == 6);
  CHECK(lines_of(ended.err).size() == 3);
}

TEST_CASE("launch: much output passes through --prefix whole") {
  const Ended ended = run(launched(2, "seq 20000", {"--prefix"}));
  CHECK(ended.code == 0);
  CHECK(lines_of(ended.out).size() == 40000);
  CHECK(contains(ended.out, "[1] 20000\n"));
}

TEST_CASE("launch: a signal is passed on once, and the run ends with code 1" *
          doctest::test_suite("slow")) {
  // The ranks count the signal and go on, so a second one would be seen; then SIGKILL ends them.
  Process job(launched(3, "trap 'echo got one' TERM; echo ready; while :; do sleep 0.05; done"));
  job.wait_for_output("ready", 3);
  kill(job.id(), SIGTERM);
  job.wait_for_output("got one", 3);
  kill(job.id(), SIGTERM);
  const Ended ended = job.wait();
  CHECK(ended.code == 128 + SIGTERM);
  CHECK(count(ended.out, "got one") == 3);
  CHECK(contains(ended.err, "error: stopped by signal 15 (Terminated)\n"));
  CHECK(job.family().empty());
}

TEST_CASE("launch: ranks may end in good order after SIGINT and SIGHUP") {
  for (int number : {SIGINT, SIGHUP}) {
    CAPTURE(number);
    // SIGINT is ignored in the background jobs of a script; the launcher acts on it all the same.
    Process job(
        launched(2, "trap 'echo saved; exit 0' INT HUP; echo ready; while :; do sleep 0.05; done"));
    job.wait_for_output("ready", 2);
    kill(job.id(), number);
    const Ended ended = job.wait();
    CHECK(ended.code == 128 + number);
    CHECK(count(ended.out, "saved") == 2);
    CHECK(contains(ended.err, "error: stopped by signal"));
  }
}

TEST_CASE("launch: a launcher killed with SIGKILL leaves no process and no file") {
  Process job(
      launched(4,
               "echo LOCKSTEP_RENDEZVOUS=$LOCKSTEP_RENDEZVOUS; [ $RANK = 0 ] && touch "
               "${LOCKSTEP_RENDEZVOUS#unix:}; "
               "(trap '' INT TERM HUP; sleep 1000; sleep 1000) & sleep 1000 & echo ready; wait"));
  job.wait_for_output("ready", 4);
  CHECK(job.family().size() >= 4 * 3 + 2);  // shell, subshell, sleep; launcher, guardian
  const auto folder = std::filesystem::path(store_path(job.out(), 4)).parent_path();
  CHECK(std::filesystem::exists(folder));
  kill(job.id(), SIGKILL);
  CHECK(job.wait().signal == SIGKILL);
  job.wait_for_empty_family();
  CHECK_FALSE(std::filesystem::exists(folder));
}

TEST_CASE("launch: a killed guardian does no harm") {
  const TemporaryFolder folder;
  const std::string flag = folder / "flag";
  Process job(
      launched(2, "echo ready; while [ ! -e " + flag + " ]; do sleep 0.01; done; echo done"));
  job.wait_for_output("ready", 2);
  std::vector<pid_t> guardians;
  for (pid_t process : job.family()) {
    std::string name;
    std::ifstream("/proc/" + std::to_string(process) + "/comm") >> name;
    if (name == "lockstep-guard") guardians.push_back(process);
  }
  REQUIRE(guardians.size() == 1);
  kill(guardians[0], SIGKILL);
  REQUIRE(run({"touch", flag}).code == 0);
  const Ended ended = job.wait();
  CHECK(ended.code == 0);
  CHECK(count(ended.out, "done") == 2);
  CHECK(ended.err.empty());
}

// The ranks of the test below: this test program again, which runs just this.
TEST_CASE("run_this_program: one rank" * doctest::skip()) {
  MESSAGE("rank ", std::string(std::getenv("RANK")), " of ",
          std::string(std::getenv("WORLD_SIZE")));
}

TEST_CASE("run_this_program: every rank is the same program with the same arguments") {
  const char* arguments[] = {"ignored", "--no-skip", "-s", "-tc=run_this_program: one rank"};
  int out[2];
  REQUIRE(pipe(out) == 0);
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    dup2(out[1], STDOUT_FILENO);
    close(out[0]);
    close(out[1]);
    _exit(lockstep::launch::run_this_program({.ranks = 2}, 4, arguments));
  }
  close(out[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t got; (got = read(out[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(got));
  close(out[0]);
  int status = -1;
  waitpid(child, &status, 0);
  CHECK(status == 0);
  CHECK(contains(text, "rank 0 of 2"));
  CHECK(contains(text, "rank 1 of 2"));
}
