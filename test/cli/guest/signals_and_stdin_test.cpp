// Signals that end a program which has no handler, to lockstep-run; and what it does with its
// stdin.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>

#include "support/program.h"
#include "support/temporary_folder.h"

namespace lockstep::test::guest_signals_and_stdin {
namespace {

const std::string run_command = LOCKSTEP_BIN_DIR "/lockstep-run";

}  // namespace

TEST_CASE("guest: a signal that would end the launcher ends the job, and is named") {
  for (const int number :
       {SIGINT,  SIGTERM, SIGHUP,  SIGQUIT,   SIGUSR2,      SIGALRM, SIGVTALRM, SIGPROF,
        SIGXCPU, SIGPOLL, SIGPWR,  SIGSTKFLT, SIGABRT,      SIGTRAP, SIGSYS,    SIGILL,
        SIGFPE,  SIGBUS,  SIGSEGV, SIGRTMIN,  SIGRTMIN + 7, SIGRTMAX}) {
    CAPTURE(number);
    Process job(launched(2, "echo ready; exec sleep 1000"));
    job.wait_for_output("ready", 2);
    kill(job.id(), number);
    const Ended ended = job.wait();
    CHECK(ended.code == 128 + number);
    CHECK(ended.err ==
          fmt::format("error: stopped by signal {} ({})\n", number, strsignal(number)));
    job.wait_for_empty_family();
  }
}

TEST_CASE("guest: such a signal reaches the ranks, which may save") {
  for (const char* name : {"USR2", "ALRM", "XCPU", "QUIT"}) {
    CAPTURE(name);
    Process job(launched(2, fmt::format("trap 'echo saved; exit 0' {}; echo ready; while :; do "
                                        "sleep 0.05; done",
                                        name)));
    job.wait_for_output("ready", 2);
    CHECK(run({"sh", "-c", fmt::format("kill -{} {}", name, job.id())}).code == 0);
    CHECK(count(job.wait().out, "saved") == 2);
  }
}

TEST_CASE("guest: signals that are ignored, or end nothing, leave the job alone") {
  const TemporaryFolder folder;
  const std::string flag = folder / "flag";
  std::vector<std::string> command =
      launched(2, "echo ready; while [ ! -e " + flag + " ]; do sleep 0.01; done; echo done");
  const std::vector<std::string> ignoring = {"sh", "-c", "trap '' USR2 ALRM; exec \"$@\"", "sh"};
  command.insert(command.begin(), ignoring.begin(), ignoring.end());
  Process job(command);
  job.wait_for_output("ready", 2);
  for (const int number : {SIGUSR2, SIGALRM, SIGPIPE, SIGURG, SIGWINCH, SIGCHLD, SIGCONT})
    kill(job.id(), number);
  std::ofstream(flag) << "";
  const Ended ended = job.wait();
  CHECK(ended.code == 0);
  CHECK(count(ended.out, "done") == 2);
}

TEST_CASE("guest: rank 0 has the launcher's stdin, the others have none") {
  const TemporaryFolder folder;
  std::ofstream(folder / "input") << "one\ntwo\n";
  const std::string ranks = " -n 3 " LOCKSTEP_BIN_DIR "/joined lines";
  for (const std::string& script :
       {"printf 'one\\ntwo\\n' | " + run_command + ranks,
        run_command + ranks + " < " + (folder / "input"),
        run_command + " --prefix" + ranks + " < " + (folder / "input")}) {
    CAPTURE(script);
    const Ended ended = run({"sh", "-c", script});
    CAPTURE(ended.err);
    CHECK(ended.code == 0);
    CHECK(count(ended.out, "rank 0 has 'one'\n") == 1);
    CHECK(count(ended.out, "rank 0 has 'two'\n") == 1);
    CHECK(count(ended.out, " has '") == 2);
  }
  // What rank 0 does not read is left for the next program.
  CHECK(run({"sh", "-c", "{ " + run_command + " -n 2 true; cat; } < " + (folder / "input")}).out ==
        "one\ntwo\n");
  CHECK(run({"sh", "-c", run_command + " -n 2 sh -c 'cat; echo end' <&-"}).out == "end\nend\n");
}

TEST_CASE("guest: with several nodes, node 0's launcher alone passes its stdin on") {
  const std::string nodes =
      "port=$(python3 -c 'import socket; s = socket.socket(); s.bind((\"127.0.0.1\", 0)); "
      "print(s.getsockname()[1])') || exit 77; for node in 1 0; do echo for node $node | " +
      run_command +
      " -n 2 --nnodes 2 --node-rank $node --rendezvous 127.0.0.1:$port " LOCKSTEP_BIN_DIR
      "/joined lines & done; wait";
  const Ended ended = run({"sh", "-c", nodes});
  if (ended.code == 77) return;
  CAPTURE(ended.err);
  CHECK(count(ended.out, " has '") == 1);
  CHECK(contains(ended.out, "rank 0 has 'for node 0'\n"));
}

namespace {

/// What a program writes that runs at a terminal, at which `typed` is typed once it says "ready".
std::string at_terminal(const std::string& command, const std::string& typed) {
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  REQUIRE(child >= 0);
  if (child == 0) {
    ::execlp("sh", "sh", "-c", command.c_str(), nullptr);
    ::_exit(127);
  }
  std::string out;
  bool told = false;
  char buffer[4096];
  pollfd output{terminal, POLLIN, 0};
  while (::poll(&output, 1, 60'000) == 1) {
    const ssize_t got = ::read(terminal, buffer, sizeof buffer);
    if (got <= 0) break;  // EIO: the program has ended
    out.append(buffer, static_cast<std::size_t>(got));
    if (told || !contains(out, "rank 1 of 2")) continue;
    told = ::write(terminal, typed.data(), typed.size()) == std::ssize(typed);
  }
  ::kill(child, SIGKILL);
  ::close(terminal);
  ::waitpid(child, nullptr, 0);
  return out;
}

}  // namespace

TEST_CASE("guest: rank 0 reads what is typed at the launcher's terminal") {
  const std::string command = "exec " + run_command + " -n 2 " LOCKSTEP_BIN_DIR "/joined lines";
  const std::string out = at_terminal(command, "one\ntwo\n\x04");
  CAPTURE(out);
  CHECK(count(out, "rank 0 has 'one'") == 1);
  CHECK(count(out, "rank 0 has 'two'") == 1);
  CHECK(contains(at_terminal(command, "\x03"), "stopped by signal 2 (Interrupt)"));
}

}  // namespace lockstep::test::guest_signals_and_stdin
