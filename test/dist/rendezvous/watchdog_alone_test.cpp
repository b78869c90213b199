// The watchdog by itself, over connections on which the test writes what may arrive there.

#include <doctest/doctest.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <sstream>
#include <string>

#include "lockstep/dist/rendezvous/events/failure_record.h"
#include "lockstep/dist/rendezvous/events/left_replicas.h"
#include "lockstep/dist/rendezvous/watchdog.h"
#include "support/forked_ranks.h"

using namespace lockstep;
using dist::FrameKind, dist::Seconds, dist::Watchdog;

namespace watchdog_alone {

constexpr Seconds patience{0.02};

void wait_for(double seconds) {
  for (const dist::Deadline end{Seconds(seconds)}; !end.passed();) ::usleep(1000);
}

/// A connection to each of `arrived`, on which that has arrived.
std::vector<int> connections(const std::vector<std::string>& arrived) {
  std::vector<int> sockets;
  for (const std::string& bytes : arrived) {
    int ends[2];
    test::expect(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "no sockets");
    test::expect(::write(ends[1], bytes.data(), bytes.size()) == std::ssize(bytes), "no room");
    sockets.push_back(ends[0]);
  }
  return sockets;
}

std::string frame(FrameKind kind) {
  std::string bytes(dist::frame_head_bytes + 9, 'r');
  const std::uint32_t length = 9;
  std::memcpy(bytes.data(), &length, sizeof length);
  bytes[dist::frame_kind_at] = static_cast<char>(kind);
  return bytes;
}

/// How a process ends whose watchdog sees this, by rank, and which has other work for so long.
test::Outcome outcome(const std::vector<std::string>& arrived, double seconds,
                      const std::function<void()>& tell_loss = {}) {
  return test::run_processes(1, [&](int) {
    ::close(STDERR_FILENO);
    const Watchdog watchdog(0, connections(arrived), patience, tell_loss);
    wait_for(seconds);
  })[0];
}

TEST_CASE("watchdog alone: of all that may have arrived only the news of a failure is one") {
  using enum FrameKind;
  std::vector<std::string> others{"", frame(abort).substr(0, dist::frame_head_bytes - 1)};
  for (const FrameKind kind :
       {gather, everything, descriptor, leave, stop, result, beat, event, order})
    others.push_back(frame(kind));
  CHECK(outcome(others, 0.3).well());
  for (std::size_t from = 0; from < others.size(); from += 5) {  // from whichever rank it comes
    others[from] = frame(abort);
    CHECK(outcome(others, 20).code == 1);
    others[from] = "";
  }
}

TEST_CASE("watchdog alone: what it reports is a consequence, of which the cause is elsewhere") {
  const dist::Pipe launcher = dist::make_pipe();
  ::setenv("LOCKSTEP_ERROR_FD", std::to_string(launcher.write_end.get()).c_str(), 1);
  CHECK(outcome({"", frame(FrameKind::abort)}, 20).code == 1);
  ::unsetenv("LOCKSTEP_ERROR_FD");
  char text[4096];
  const ssize_t got = ::read(launcher.read_end.get(), text, sizeof text);
  std::istringstream lines(std::string(text, static_cast<std::size_t>(std::max<ssize_t>(got, 0))));
  std::optional<dist::FailureRecord> record;
  for (std::string line; !record && std::getline(lines, line);)
    if (const auto event = dist::RankEvent::read(line);
        event && event->kind == dist::RankEvent::Kind::failed)
      record = event->failure;
  REQUIRE(record);
  CHECK(record->consequence);
  CHECK(test::contains(record->message, "its job has failed (rrrrrrrrr)"));
}

TEST_CASE("watchdog alone: in a job that survives the launcher is told, and ends the rank") {
  const dist::Pipe told = dist::make_pipe();
  const test::Outcome killed = outcome({frame(FrameKind::abort)}, 20, [&] {
    test::expect(::write(told.write_end.get(), "x", 1) == 1, "no pipe");
    ::kill(::getpid(), SIGKILL);  // as the launcher does
  });
  CHECK(killed.signal == SIGKILL);
  char byte = 0;
  ::fcntl(told.read_end.get(), F_SETFL, O_NONBLOCK);
  CHECK(::read(told.read_end.get(), &byte, 1) == 1);
}

TEST_CASE("watchdog alone: in a child that was forked it ends with what has made it") {
  test::check_all_well(test::run_processes(1, [](int) {
    auto watchdog = std::make_unique<Watchdog>(0, connections({""}), Seconds(20));
    const pid_t child = ::fork();
    if (child == 0) {
      watchdog.reset();
      ::_exit(7);
    }
    int status = 0;
    const dist::Deadline limit{Seconds(20)};
    while (::waitpid(child, &status, WNOHANG) == 0 && !limit.passed()) ::usleep(1000);
    if (limit.passed()) ::kill(child, SIGKILL);
    test::expect(WIFEXITED(status) && WEXITSTATUS(status) == 7, "the child has not ended");
  }));
}

}  // namespace watchdog_alone
