// How a program ends: run_main in a process of its own, alone and under a launcher.

#include "lockstep/launch/report.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/dist/rendezvous/events/failure_record.h"
#include "lockstep/dist/rendezvous/socket.h"

using namespace lockstep;
using dist::Descriptor;

namespace {

struct Outcome {
  int code;
  std::string err, records;
};

std::string all_of(int descriptor) {
  std::string text(8192, '\0');
  const ssize_t got = pread(descriptor, text.data(), text.size(), 0);
  return text.substr(0, got < 0 ? 0 : static_cast<std::size_t>(got));
}

// Runs run_main(body) in a child; `error_fd` is LOCKSTEP_ERROR_FD there, "pipe" stands for a real
// one. The child starts without the descriptors `closed`.
Outcome run_child(const std::function<int()>& body, const char* error_fd = nullptr,
                  const std::vector<int>& closed = {}) {
  const Descriptor err(memfd_create("err", MFD_CLOEXEC));
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  Descriptor read_end(ends[0]), write_end(ends[1]);
  std::fflush(stdout);  // what is buffered must not come out of the child as well
  const pid_t child = fork();
  if (child == 0) {
    dup2(err.get(), STDERR_FILENO);
    unsetenv("LOCKSTEP_ERROR_FD");
    const std::string number = std::to_string(write_end.get());
    if (error_fd)
      setenv("LOCKSTEP_ERROR_FD", error_fd == std::string("pipe") ? number.c_str() : error_fd, 1);
    for (const int descriptor : closed) close(descriptor);
    _exit(run_main(body));
  }
  write_end.close();
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  std::string records(8192, '\0');
  const ssize_t got = read(read_end.get(), records.data(), records.size());
  records.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  return {WEXITSTATUS(status), all_of(err.get()), records};
}

/// What it has told its launcher: why it failed, and nothing else.
dist::FailureRecord told_in(const Outcome& outcome) {
  const auto event = dist::RankEvent::read(outcome.records);
  REQUIRE(event);
  CHECK(event->kind == dist::RankEvent::Kind::failed);
  return event->failure;
}

}  // namespace

TEST_CASE("run_main: exit codes and one line on stderr") {
  CHECK(run_child([] { return 0; }).code == 0);
  CHECK(run_child([] { return 5; }).code == 5);
  CHECK(run_child([] { return 5; }).err.empty());

  const Outcome shape = run_child([]() -> int { fail<ShapeError>("[add] {} and {}", 2, 3); });
  CHECK(shape.code == 1);
  CHECK(shape.err == "error: [add] 2 and 3\n");

  const Outcome usage = run_child([]() -> int { fail<UsageError>("--lr: 'x'"); });
  CHECK(usage.code == 2);
  CHECK(usage.err == "error: --lr: 'x'\n");

  CHECK(run_child([]() -> int { throw std::bad_alloc(); }).err == "error: out of memory\n");
  CHECK(run_child([]() -> int { throw std::out_of_range("that"); }).err == "error: that\n");
  CHECK(run_child([]() -> int { throw std::out_of_range(""); }).err ==
        "error: an error without a message\n");
  const Outcome number = run_child([]() -> int { throw 42; });
  CHECK(number.code == 1);
  CHECK(number.err == "error: an error of no known kind\n");
}

TEST_CASE("run_main: a message with newlines or escape codes stays one line") {
  const Outcome outcome = run_child([]() -> int { fail<DataError>("file 'a\nb\x1b[2J'"); });
  CHECK(outcome.err == "error: file 'a\\nb\\x1b[2J'\n");
}

TEST_CASE("run_main: output that cannot be written is a failure") {
  const Outcome outcome = run_child([] {
    const int full = open("/dev/full", O_WRONLY);
    dup2(full, STDOUT_FILENO);
    std::printf("result\n");
    return 0;
  });
  CHECK(outcome.code == 1);
  CHECK(outcome.err == "error: cannot write to stdout: No space left on device\n");
}

TEST_CASE("run_main: of output that was lost earlier no reason is made up") {
  const Outcome outcome = run_child([] {
    const int out = dup(STDOUT_FILENO), full = open("/dev/full", O_WRONLY);
    dup2(full, STDOUT_FILENO);
    std::printf("result\n");
    std::fflush(stdout);
    dup2(out, STDOUT_FILENO);
    errno = 0;
    return 0;
  });
  CHECK(outcome.code == 1);
  CHECK(outcome.err == "error: cannot write to stdout: a part of the output is lost\n");
}

TEST_CASE("run_main: a file beyond the limit of its size is an error, not a signal") {
  const Outcome outcome = run_child([]() -> int {
    const rlimit limit{10, 10};
    setrlimit(RLIMIT_FSIZE, &limit);
    const Descriptor file(memfd_create("file", MFD_CLOEXEC));
    for (int k = 0; k < 2; ++k)
      if (write(file.get(), "0123456789", 10) < 0) fail<DataError>("{}", std::strerror(errno));
    return 0;
  });
  CHECK(outcome.code == 1);
}

TEST_CASE("run_main: an error that cannot be written still ends in its code") {
  const auto fail_without_stderr = []() -> int {
    const int full = open("/dev/full", O_WRONLY);
    dup2(full, STDERR_FILENO);
    fail<UsageError>("--lr: 'x'");
  };
  CHECK(run_child(fail_without_stderr).code == 2);
  CHECK(run_child([]() -> int { fail<DataError>("bad"); }, nullptr, {2}).code == 1);
}

TEST_CASE("run_main: standard descriptors that are closed") {
  const Outcome no_stdout = run_child([] { return 0; }, nullptr, {1});
  CHECK(no_stdout.code == 1);
  CHECK(no_stdout.err == "error: cannot write to stdout: it is closed\n");
  const Outcome other = run_child([]() -> int { fail<DataError>("bad"); }, nullptr, {0, 1});
  CHECK(other.err == "error: bad\n");
  CHECK(run_child([] { return 0; }, nullptr, {0, 2}).code == 0);
  // No file of the program's own takes their place.
  const auto first_free = [] { return open("/dev/null", O_RDONLY); };
  CHECK(run_child(first_free, nullptr, {0, 1, 2}).code > 2);
  CHECK(run_child(first_free, nullptr, {1}).code > 2);
}

TEST_CASE("run_main: a program that has said itself why it fails") {
  const auto body = []() -> int { throw AlreadyReported{3}; };
  const Outcome alone = run_child(body);
  CHECK(alone.code == 3);
  CHECK(alone.err.empty());
  const Outcome launched = run_child(body, "pipe");
  CHECK(launched.code == 3);
  CHECK(launched.err.empty());
  CHECK(told_in(launched).message.empty());

  const Outcome unheard = run_child([]() -> int {
    const int full = open("/dev/full", O_WRONLY);
    dup2(full, STDOUT_FILENO);
    std::printf("replicas differ\n");
    throw AlreadyReported{3};
  });
  CHECK(unheard.err == "error: cannot write to stdout: No space left on device\n");
}

TEST_CASE("run_main: under a launcher the message goes into its pipe") {
  const Outcome cause = run_child([]() -> int { fail<DataError>("[x] bad"); }, "pipe");
  CHECK(cause.code == 1);
  CHECK(cause.err.empty());
  CHECK(told_in(cause).text() == "[x] bad");
  CHECK_FALSE(told_in(cause).consequence);

  const Outcome consequence = run_child([]() -> int { fail<PeerError>("rank 1 is gone"); }, "pipe");
  CHECK(told_in(consequence).text() == "rank 1 is gone");
  CHECK(told_in(consequence).consequence);
  const auto blame = []() -> int {
    throw blaming(Blame{{1}, Fault::hangs}, CommError("timed out"));
  };
  CHECK(told_in(run_child(blame, "pipe")).text() == "rank 1 hangs: timed out");
  CHECK(run_child(blame).err == "error: rank 1 hangs: timed out\n");
  const Outcome own = run_child([]() -> int { fail<CommError>("timed out"); }, "pipe");
  CHECK(told_in(own).text() == "timed out");
}

TEST_CASE("run_main: a descriptor that is not the launcher's pipe is left alone") {
  for (const char* number : {"", "x", "-1", "99999", "0x3", "3 ", "2"}) {
    CAPTURE(number);
    const Outcome outcome = run_child([]() -> int { fail<DataError>("bad"); }, number);
    CHECK(outcome.err == "error: bad\n");
  }
}
