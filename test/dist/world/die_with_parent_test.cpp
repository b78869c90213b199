// LOCKSTEP_DIE_WITH_PARENT: a rank ends with the process that started it, if it is asked to.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "lockstep/core/error.h"
#include "lockstep/dist/rendezvous/environment.h"
#include "lockstep/dist/world/world.h"

using namespace lockstep;

namespace {

/// A process, and its child that has joined a world of 1. The child echoes what it reads.
struct ParentAndRank {
  explicit ParentAndRank(const char* value) {
    REQUIRE(::pipe2(to_rank, O_CLOEXEC) == 0);
    REQUIRE(::pipe2(from_rank, O_CLOEXEC) == 0);
    parent = ::fork();
    if (parent == 0) {
      if (::fork() == 0) be_rank(value);
      ::close(from_rank[1]);
      for (;;) ::pause();
    }
    ::close(to_rank[0]);
    ::close(from_rank[1]);
  }
  ~ParentAndRank() {
    ::close(to_rank[1]);  // the end of input: a rank that lives ends
    ::close(from_rank[0]);
  }

  [[noreturn]] void be_rank(const char* value) {
    ::close(to_rank[1]);
    ::close(from_rank[0]);
    if (value) ::setenv("LOCKSTEP_DIE_WITH_PARENT", value, 1);
    for (const char* name : {"RANK", "WORLD_SIZE"}) ::unsetenv(name);
    try {
      const World world = World::join();
      char byte = 'j';
      do {
        if (::write(from_rank[1], &byte, 1) != 1) break;
      } while (::read(to_rank[0], &byte, 1) == 1);
    } catch (const Error&) {
      ::_exit(1);
    }
    ::_exit(0);
  }

  /// What the rank writes next; 0 if it has ended. '?' if neither comes within a minute.
  char next() const {
    pollfd source{from_rank[0], POLLIN, 0};
    if (::poll(&source, 1, 60000) != 1) return '?';
    char byte = 0;
    return ::read(from_rank[0], &byte, 1) == 1 ? byte : '\0';
  }
  void kill_parent() const {
    ::kill(parent, SIGKILL);
    ::waitpid(parent, nullptr, 0);
  }

  int to_rank[2], from_rank[2];
  pid_t parent = -1;
};

}  // namespace

TEST_CASE("die with parent: a rank that asks for it is killed with its parent") {
  const ParentAndRank asked("1");
  REQUIRE(asked.next() == 'j');
  asked.kill_parent();
  CHECK(asked.next() == '\0');
}

TEST_CASE("die with parent: otherwise it lives on") {
  for (const char* value : {static_cast<const char*>(nullptr), "0"}) {
    const ParentAndRank not_asked(value);
    REQUIRE(not_asked.next() == 'j');
    not_asked.kill_parent();
    REQUIRE(::write(not_asked.to_rank[1], "x", 1) == 1);
    CHECK(not_asked.next() == 'x');
  }
}

TEST_CASE("die with parent: another value is refused by name") {
  for (const char* value : {"", "yes", "2", "01", "-1"})
    CHECK_THROWS_WITH_AS(
        dist::die_with_parent_if_asked([&](const char*) { return value; }),
        ("[environment] LOCKSTEP_DIE_WITH_PARENT must be 0 or 1, got '" + std::string(value) + "'")
            .c_str(),
        UsageError);
}
