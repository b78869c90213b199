// Programs without run_main: one rank ends by something that nobody catches, while the others wait
// for it. The launcher must name that rank and why; the others' errors are not caught either.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <map>
#include <optional>
#include <thread>

#include "lockstep/dist/world/world.h"
#include "support/program.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

std::string value_of(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

void fail_to_load() { fail<DataError>("[load] shard-1.bin: no such file"); }

/// Ends the process, each in its way.
const std::map<std::string, void (*)()> ways = {
    {"throws", [] { fail_to_load(); }},
    {"throws in a thread", [] { std::thread(fail_to_load).join(); }},
    {"throws in a noexcept function", [] { []() noexcept { fail_to_load(); }(); }},
    {"throws UsageError", [] { fail<UsageError>("--lr: 'x' is not a number"); }},
    {"throws a number", [] { throw 42; }},
    {"leaves a thread", [] { std::thread thread([] { ::pause(); }); }},
    {"has a handler",
     [] {
       fail_to_load();  // uncaught_rank has set it before
     }},
    {"aborts", [] { std::abort(); }},
    {"exit(3)", [] { std::exit(3); }},
    {"exit(0)", [] { std::exit(0); }},
    {"_exit(0)", [] { ::_exit(0); }},
    {"ends its World", [] {}},  // in uncaught_rank
    {"ends its World and goes on", [] {}},
    {"hangs",
     [] {
       for (;;) ::pause();
     }},
    {"forks", [] {
       const pid_t child = ::fork();
       if (child == 0) {
         ::close(STDERR_FILENO);
         fail_to_load();
       }
       int status = 0;
       ::waitpid(child, &status, 0);
       check<Error>(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, "ended by {}", status);
     }}};

/// What main does, without a handler around it: doctest's must not see the errors.
void uncaught_rank() noexcept {
  const std::string way = value_of("WAY");
  if (way == "has a handler")
    std::set_terminate([] {
      std::fputs("the program's own handler\n", stderr);
      ::_exit(9);
    });
  std::optional<World> joined = World::join(
      {.transport = value_of("TRANSPORT"), .timeout = dist::Seconds(way == "hangs" ? 1 : 60)});
  World& world = *joined;
  const Tensor data = Tensor::zeros({100});
  world.communicator().all_reduce(data, "first").wait();
  if (std::to_string(world.rank()) == value_of("VICTIM")) ways.at(way)();
  if (way.starts_with("ends its World") && std::to_string(world.rank()) == value_of("VICTIM")) {
    joined.reset();
    if (way.ends_with("and goes on")) ::pause();
    return;
  }
  world.communicator().all_reduce(data, "second").wait();
}

std::vector<std::string> this_program() {
  return {std::filesystem::read_symlink("/proc/self/exe"), "--no-skip", "-tc=uncaught rank"};
}

Ended job(int ranks, int victim, const std::string& way, const std::string& transport) {
  std::vector<std::string> command{LOCKSTEP_BIN_DIR "/lockstep-run", "-n", std::to_string(ranks)};
  for (const std::string& word : this_program()) command.push_back(word);
  return run(command, {"WAY=" + way, "VICTIM=" + std::to_string(victim), "TRANSPORT=" + transport});
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

TEST_CASE("uncaught rank" * doctest::skip()) {
  if (value_of("WAY").empty()) return;  // --no-skip by hand: there is no job
  uncaught_rank();
  ::_exit(0);
}

TEST_CASE("uncaught: the launcher names the rank that failed, and why") {
  struct Case {
    const char* way;
    int code;
    std::string says;  // behind "rank V"
  };
  const std::string load = "failed with exit code 1: [load] shard-1.bin: no such file";
  const std::vector<Case> cases = {
      {"throws", 1, load},
      {"throws in a thread", 1, load},
      {"throws in a noexcept function", 1, load},
      {"throws UsageError", 2, ""},  // wrong options are nobody's failure
      {"throws a number", 1, "failed with exit code 1: an error of no known kind"},
      {"leaves a thread", 1,
       "failed with exit code 1: std::terminate without an exception: was a std::thread destroyed "
       "that had not been joined?"},
      {"has a handler", 9, "failed with exit code 9: [load] shard-1.bin: no such file"},
      {"aborts", 1, "was killed by signal 6 (Aborted)"},
      {"exit(3)", 3, "failed with exit code 3"},
  };
  int turn = 0;
  for (const Case& c : cases) {
    for (const char* transport : {"shm", "tcp"}) {
      const int ranks = 2 + ++turn % 3, victim = turn % ranks;
      CAPTURE(c.way);
      CAPTURE(ranks);
      const Ended ended = job(ranks, victim, c.way, transport);
      CHECK(ended.code == c.code);
      std::vector<std::string> lines = lines_of(ended.err);  // rank 0 has the launcher's stderr
      std::erase(lines, "the program's own handler");
      std::erase_if(lines, [](const std::string& line) {
        return line.starts_with("TEST CASE:") || line.starts_with("  ") || line.empty();
      });
      INFO(ended.err);
      REQUIRE_FALSE(lines.empty());
      const std::string rank = "rank " + std::to_string(victim);
      const std::string wanted = c.code == 2
                                     ? "error: --lr: 'x' is not a number (reported by " + rank + ")"
                                     : "error: " + rank + " " + c.says;
      CHECK(lines[0].substr(0, wanted.size()) == wanted);
    }
  }
}

TEST_CASE("uncaught: a rank that left in the middle is named, and what it has not called") {
  int turn = 0;
  for (const char* way : {"exit(0)", "_exit(0)", "ends its World"}) {
    for (const char* transport : {"shm", "tcp"}) {
      const int ranks = 2 + ++turn % 3, victim = turn % ranks;
      CAPTURE(way);
      CAPTURE(transport);
      const Ended ended = job(ranks, victim, way, transport);
      INFO(ended.err);
      CHECK(ended.code == 1);
      CHECK(first_line(ended.err).starts_with(
          "error: rank " + std::to_string(victim) +
          " ended with exit code 0 without the call that others wait in: "
          "[all_reduce] rank "));
      CHECK(contains(first_line(ended.err), "'second'"));
    }
  }
}

TEST_CASE("uncaught: a rank that has ended its World and runs on is named, too") {
  const Ended ended = job(3, 1, "ends its World and goes on", "shm");
  INFO(ended.err);
  CHECK(ended.code == 1);
  CHECK(ended.err.starts_with("error: rank 1 left: [all_reduce] rank "));
  CHECK(contains(ended.err, "'second': rank 1 left: it ended its World, or exited, without this"));
}

TEST_CASE("uncaught: a rank that hangs comes first, although others have reported it") {
  // The timeout is also when a rank ends itself that hears nothing: that is no cause.
  for (const char* transport : {"shm", "tcp"}) {
    for (const int ranks : {2, 3, 4}) {
      const Ended ended = job(ranks, 1, "hangs", transport);
      INFO(ended.err);
      CHECK(ended.code == 1);
      CHECK(ended.err.starts_with("error: rank 1 hangs: [all_reduce] rank "));
    }
  }
}

TEST_CASE("uncaught: without a launcher it is one line, and the same code") {
  for (const auto& [way, code, says] :
       {std::tuple("throws in a thread", 1, "error: [load] shard-1.bin: no such file\n"),
        std::tuple("throws UsageError", 2, "error: --lr: 'x' is not a number\n")}) {
    const Ended ended = run(this_program(), {std::string("WAY=") + way, "VICTIM=0", "TRANSPORT="});
    CHECK(ended.code == code);
    CHECK(ended.err == says);
  }
}

TEST_CASE("uncaught: a child that a rank has forked is no rank") {
  const Ended ended = job(2, 1, "forks", "shm");
  CHECK(ended.code == 0);
  CHECK(ended.err == "");
}
