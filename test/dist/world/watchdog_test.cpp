// A rank that never calls ends itself after its job has failed; nobody else does.

#include "lockstep/dist/rendezvous/watchdog.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>

#include "dist/collectives/exercise.h"
#include "lockstep/dist/world/world.h"
#include "support/forked_ranks.h"
#include "support/worlds.h"

namespace lockstep {
namespace {

using test::expect;

constexpr double watch_timeout = 0.8;

/// Joins on `size` ranks and lets each do `body(world)`.
template <class F>
std::vector<test::Outcome> watched(int size, const std::string& transport, F body,
                                   const char* wanted = "1") {
  const test::TemporaryFolder folder;
  return test::run_processes(size, [&](int rank) {
    ::setenv("LOCKSTEP_WATCHDOG", wanted, 1);
    test::set_rank_environment(rank, size, "unix:" + folder / "rendezvous");
    World world = World::join({.transport = transport, .timeout = dist::Seconds(watch_timeout)});
    world.communicator().barrier("all are here").wait();
    body(world);
  });
}

/// Makes no call for so long.
void loop_for(double seconds) {
  for (const dist::Deadline end{dist::Seconds(seconds)}; !end.passed();) ::usleep(1000);
}

/// Until another rank writes to it: it is past the barrier, where it would hear of a failure.
void await_loop(const dist::Pipe& pipe) {
  char byte = 0;
  expect(::read(pipe.read_end.get(), &byte, 1) == 1, "no pipe");
}

TEST_CASE("watchdog: a rank that loops ends after its job has failed" *
          doctest::test_suite("not-address not-thread")) {
  for (const char* transport : {"shm", "tcp"})
    for (const int victim : {0, 1, 2})
      for (const std::string way : {"throws", "killed", "all killed"}) {
        INFO(transport, ", rank ", victim, " of 3: ", way);
        const int looping = (victim + 1) % 3;
        const dist::Pipe loops = dist::make_pipe();  // the others go on once it does
        const auto outcomes = watched(3, transport, [&](World& world) {
          char two[2]{};
          if (world.rank() == looping) {
            expect(::write(loops.write_end.get(), two, 2) == 2, "no pipe");
            loop_for(100);
          }
          expect(::read(loops.read_end.get(), two, 1) == 1, "no pipe");
          if (way == "all killed") ::raise(SIGKILL);
          if (world.rank() == victim && way == "killed") ::raise(SIGKILL);
          if (world.rank() == victim) fail<StateError>("of its own");
          world.communicator().barrier("never").wait();
        });
        CHECK(outcomes[dist::index(looping)].code == 1);
        CHECK(outcomes[dist::index(looping)].seconds < 60);  // not by its own will
        CHECK(outcomes[dist::index(looping)].message == "");
      }
}

TEST_CASE("watchdog: a child that was forked ends, and says nothing in the name of its parent") {
  for (const char* transport : {"shm", "tcp"}) {
    INFO(transport);
    const test::TemporaryFolder folder;
    test::check_all_well(test::run_processes(3, [&](int rank) {
      test::set_rank_environment(rank, 3, "unix:" + folder / "rendezvous");
      World world = World::join({.transport = transport, .timeout = dist::Seconds(30)});
      const pid_t child = ::fork();
      if (child == 0) {
        { const World ends = std::move(world); }
        ::_exit(7);
      }
      int status = 0;
      const dist::Deadline limit{dist::Seconds(20)};
      while (::waitpid(child, &status, WNOHANG) == 0 && !limit.passed()) ::usleep(1000);
      if (limit.passed()) ::kill(child, SIGKILL);
      expect(WIFEXITED(status) && WEXITSTATUS(status) == 7, "the child has not ended");
      world.communicator().barrier("all are still here").wait();
    }));
  }
}

/// The signals that a thread of this process blocks.
std::uint64_t blocked_by(const std::string& thread) {
  std::ifstream status("/proc/self/task/" + thread + "/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("SigBlk:")) return std::stoull(line.substr(7), nullptr, 16);
  fail<Error>("thread {} has no signals", thread);
}

TEST_CASE(
    "watchdog: a program's signals are its own: they stay as they are, its thread takes none") {
  test::check_all_well(watched(2, "shm", [](World&) {
    const std::string main = std::to_string(::getpid());
    expect(blocked_by(main) == 0, "signals are blocked: {:x}", blocked_by(main));
    std::uint64_t others_signals = 0x7fffffff;  // all but those of a thread's own fault
    for (const int own : {SIGKILL, SIGSTOP, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGSYS, SIGTRAP})
      others_signals &= ~(std::uint64_t{1} << (own - 1));
    // Until the system has started it, a thread blocks all. So does one of a sanitizer's.
    bool found = false;
    for (int look = 0; look < 10'000 && !found; ++look, ::usleep(1000))
      for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
        const std::string thread = entry.path().filename();
        if (thread == main) continue;
        const std::uint64_t blocked = blocked_by(thread) & 0x7fffffff;
        expect((blocked & others_signals) == others_signals, "blocks {:x} alone", blocked);
        found = found || blocked == others_signals;
      }
    expect(found, "there is no watchdog, or it blocks what its own faults raise");
  }));
}

TEST_CASE("watchdog: its line ends where the reason ends, and has nothing that cannot be printed") {
  const test::TemporaryFolder folder;
  const dist::Pipe looping = dist::make_pipe();
  const auto outcomes = watched(2, "shm", [&](World& world) {
    if (world.rank() == 0) {
      await_loop(looping);
      world.abort("tired\x1b[31m of\nit\x7f\xff");
      loop_for(2 * watch_timeout);
      std::exit(0);  // more frames follow
    }
    const int file = ::creat((folder / "said").c_str(), 0600);
    ::dup2(file, STDERR_FILENO);
    expect(::write(looping.write_end.get(), "", 1) == 1, "no pipe");
    loop_for(100);
  });
  CHECK(outcomes[1].code == 1);
  std::ifstream said(folder / "said");
  std::string line, more;
  std::getline(said, line);
  CHECK_FALSE(std::getline(said, more));
  CAPTURE(line);
  CHECK(line.starts_with("error: rank 1 ends itself: its job has failed ("));
  CHECK(line.find("tired?[31m of?it?"
                  "?), and for 0.8 s it has made no call") != line.npos);
}

// Ranks of ours give a reason. But its bytes may come later than the head of the frame.
TEST_CASE("watchdog: a failure without a reason is one") {
  const auto outcomes = test::run_processes(1, [](int) {
    std::array<int, 2> ends{};
    expect(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) == 0, "no sockets");
    std::string head(dist::frame_head_bytes, '\0');
    head[dist::frame_kind_at] = static_cast<char>(dist::FrameKind::abort);
    expect(::write(ends[1], head.data(), head.size()) == std::ssize(head), "no socket");
    const dist::Watchdog watchdog(0, {ends[0]}, dist::Seconds(watch_timeout));
    loop_for(100);
  });
  CHECK(outcomes[0].code == 1);
  CHECK(outcomes[0].seconds < 60);  // not by its own will
}

TEST_CASE("watchdog: time in which a rank was stopped is none in which it has heard nothing") {
  // The watchdog looks at the clock every 0.3 s; a pause counts for 1 s, of the patience of 2.4 s.
  constexpr double patience = 2.4;
  const test::TemporaryFolder folder;
  const dist::Pipe looping = dist::make_pipe(), number = dist::make_pipe();
  const auto outcomes = test::run_processes(3, [&](int rank) {
    pid_t other = 0;
    if (rank == 2) {  // no rank: stops rank 1 for longer than its patience
      expect(::read(number.read_end.get(), &other, sizeof other) == sizeof other, "no pipe");
      ::usleep(500'000);
      ::kill(other, SIGSTOP);
      ::usleep(static_cast<useconds_t>(1e6 * patience));
      ::kill(other, SIGCONT);
      return;
    }
    test::set_rank_environment(rank, 2, "unix:" + folder / "rendezvous");
    const World world = World::join({.transport = "shm", .timeout = dist::Seconds(patience)});
    world.communicator().barrier("all are here").wait();
    if (rank == 0) {
      await_loop(looping);
      fail<StateError>("of its own");
    }
    const pid_t own = ::getpid();
    expect(::write(number.write_end.get(), &own, sizeof own) == sizeof own, "no pipe");
    expect(::write(looping.write_end.get(), "", 1) == 1, "no pipe");
    loop_for(0.5 + patience + 0.1);
    world.communicator().barrier("without it").wait();
  });
  CHECK(outcomes[1].kind == "peer");  // it has heard, and ends by an error of its own
  CHECK(outcomes[2].well());
}

TEST_CASE("watchdog: nobody else is ended" * doctest::test_suite("not-address not-thread")) {
  for (const char* transport : {"shm", "tcp"}) {
    INFO(transport);
    // The others have left in peace: by the end of World, or by exit().
    for (const bool by_exit : {false, true}) {
      const auto outcomes = watched(3, transport, [&](World& world) {
        if (world.rank() != 1 && by_exit) std::exit(0);
        if (world.rank() == 1) loop_for(3 * watch_timeout);
      });
      CHECK(outcomes[1].code == 0);
    }
    // It has heard, caught the error and goes on alone.
    const auto alone = watched(2, transport, [&](World& world) {
      if (world.rank() == 1) ::raise(SIGKILL);
      CHECK_THROWS_AS(world.communicator().barrier("without it").wait(), CommError);
      loop_for(3 * watch_timeout);
    });
    CHECK(alone[0].code == 0);
    // It has made a new world of another rendezvous, or none: the old one is over.
    const auto over = watched(2, transport, [&](World& world) {
      if (world.rank() == 1) ::raise(SIGKILL);
      const World gone = std::exchange(world, [] {
        for (const char* name : {"RANK", "WORLD_SIZE"}) ::unsetenv(name);
        return World::join();
      }());
    });
    CHECK(over[0].code == 0);
    // The user does not want it.
    const auto unwatched = watched(
        2, transport,
        [&](World& world) {
          if (world.rank() == 1) ::raise(SIGKILL);
          loop_for(3 * watch_timeout);
        },
        "0");
    CHECK(unwatched[0].code == 0);
    // All goes well, but slowly.
    const auto slow = watched(2, transport, [&](World&) { loop_for(3 * watch_timeout); });
    test::check_all_well(slow);
  }
}

}  // namespace
}  // namespace lockstep
