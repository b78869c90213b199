// A rank that is a thread and does not end: nobody can end it from outside, but a line says which
// rank it is, and what the others waited for.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <sstream>
#include <utility>

#include "lockstep/dist/world/world.h"
#include "support/expect.h"
#include "support/forked_ranks.h"
#include "support/temporary_folder.h"
#include "support/text.h"

namespace lockstep {
namespace {

using test::contains;

/// Runs ranks as threads in a process of its own: how it ends, and what it writes to stderr.
std::pair<test::Outcome, std::string> run(int size, const std::function<void(World&)>& body) {
  const test::TemporaryFolder folder;
  const std::string file = folder / "stderr";
  const auto outcomes = test::run_processes(1, [&](int) {
    const int err = ::open(file.c_str(), O_CREAT | O_WRONLY, 0600);
    ::dup2(err, STDERR_FILENO);
    run_threads(size, {.timeout = dist::Seconds(0.3)}, body);
  });
  std::stringstream text;
  text << std::ifstream(file).rdbuf();
  return {outcomes[0], text.str()};
}

bool said(const std::string& text) { return test::count(text, "\n") == 1 && text.ends_with("\n"); }

TEST_CASE("threads: a rank that loops is named on stderr while it loops, with the call") {
  static std::atomic<int> ended;
  for (const int size : {2, 4}) {
    ended = 0;
    const auto [outcome, err] = run(size, [&](World& world) {
      const Tensor x = Tensor::full({5}, 1);
      world.communicator().all_reduce(x, "first").wait();
      if (world.rank() == 1) {  // looks at nothing until the line must have been printed
        while (ended < world.size() - 1) ::usleep(1000);
        const auto start = std::chrono::steady_clock::now();
        while (std::chrono::steady_clock::now() - start < std::chrono::seconds(2)) continue;
        return;
      }
      struct AtEnd {
        ~AtEnd() { ++ended; }
      } const at_end;
      world.communicator().all_reduce(x, "second").wait();
    });
    INFO(err);
    CHECK(said(err));
    CHECK(contains(err, "error: [run_threads] rank 1 is still running, 0.3 s after the others "));
    CHECK(contains(err, "[all_reduce]"));
    CHECK(contains(err, "'second'"));
    CHECK(contains(err, "rank 1"));
    CHECK(outcome.kind == "comm");
    CHECK(contains(outcome.message, "'second'"));
  }
}

TEST_CASE("threads: ranks that end in time are not mentioned") {
  const auto [failed, err] = run(3, [](World& world) {
    if (world.rank() == 1) fail<DataError>("bad data");
    world.communicator().barrier("end").wait();
  });
  CHECK(err == "");
  CHECK(failed.message == "bad data");
  const auto [well, nothing] = run(3, [](World& world) {
    if (world.rank() == 0) ::usleep(500'000);  // longer than the timeout, but nobody has failed
  });
  CHECK(nothing == "");
  CHECK(well.well());
}

}  // namespace
}  // namespace lockstep
