// Every fault at every moment, by every victim, under every way to start ranks.

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <mutex>
#include <thread>

#include "faults/cell.h"
#include "support/drill.h"
#include "support/expect.h"
#include "support/text.h"

using namespace lockstep::test;

namespace {

bool can_start(const Start& start) {
  static const bool mpirun = std::system("command -v mpirun >/dev/null") == 0;
  return start.name != "mpirun" || mpirun;
}

}  // namespace

TEST_CASE("drill faults: one cell of the table of faults, moments, victims and starts" *
          doctest::test_suite("slow")) {
  const std::vector<Cell> cells = all_cells();
  drill(5, [&](std::uint64_t seed) {
    // A prime: as many seeds are all cells. From 7 on, the first five are of the five starts.
    const Cell& cell = cells[(seed + 7) * 7919 % cells.size()];
    if (!can_start(*cell.start)) return;
    const Seen seen = run_cell(cell);
    const Verdict verdict = judge(cell, seen);
    expect(verdict.wrong.empty(), "{}: {}", cell.text(), fmt::join(verdict.wrong, "; "));
  });
}

namespace {

/// Several cells at once: most of the time they wait.
template <class Run>
void run_at_once(std::size_t count, Run&& run) {
  std::atomic<std::size_t> next{0};
  std::vector<std::jthread> threads;
  for (int k = 0; k < 6; ++k)
    threads.emplace_back([&] {
      for (std::size_t i; (i = next++) < count;) run(i);
    });
}

}  // namespace

TEST_CASE("drill reliability: all cells of the table, which writes docs/reliability.md" *
          doctest::test_suite("slow")) {
  if (!std::getenv("LOCKSTEP_RUNS")) return;  // only when it is asked for: it takes half an hour
  for (const Start& start : starts) REQUIRE_MESSAGE(can_start(start), "there is no ", start.name);
  const std::vector<Cell> cells = all_cells();
  std::vector<Seen> seen(cells.size());
  std::vector<Verdict> verdicts(cells.size());
  std::mutex mutex;
  std::size_t ended = 0, wrong = 0;
  auto told = std::chrono::steady_clock::now();
  run_at_once(cells.size(), [&](std::size_t i) {
    // On a busy machine a run may be late. What is wrong twice is wrong.
    for (int attempt = 0; attempt < 2; ++attempt) {
      seen[i] = run_cell(cells[i]);
      verdicts[i] = judge(cells[i], seen[i]);
      if (verdicts[i].wrong.empty()) break;
      const std::lock_guard lock(mutex);
      fmt::print("{}: {}\n", cells[i].text(), fmt::join(verdicts[i].wrong, "; "));
      std::fflush(stdout);
    }
    const std::lock_guard lock(mutex);
    wrong += !verdicts[i].wrong.empty();
    ++ended;
    if (std::chrono::steady_clock::now() - told < std::chrono::seconds(10)) return;
    told = std::chrono::steady_clock::now();
    std::fprintf(stderr, "drill: %zu of %zu faults, %zu not as promised\n", ended, cells.size(),
                 wrong);
  });
  for (std::size_t i = 0; i < cells.size(); ++i)
    CHECK_MESSAGE(verdicts[i].wrong.empty(), cells[i].text());
  std::ofstream(LOCKSTEP_SOURCE_DIR "/docs/reliability.md") << reliability_page(seen, verdicts);
  std::fprintf(stderr, "drill: %zu faults, %zu not as promised (above); table: %s\n", cells.size(),
               wrong, LOCKSTEP_SOURCE_DIR "/docs/reliability.md");
}

TEST_CASE("faults: docs/reliability.md has every row") {
  std::ifstream file(LOCKSTEP_SOURCE_DIR "/docs/reliability.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  for (const Start& start : starts) {
    const std::size_t begin = page.find("\n## " + start.text + "\n");
    REQUIRE_MESSAGE(begin != std::string::npos, start.text);
    const std::string section = page.substr(begin, page.find("\n## ", begin + 1) - begin);
    for (const lockstep::test::Fault& fault : faults)
      for (const std::string& moment : moments)
        CHECK_MESSAGE(count(section, row_head(fault, moment)) == 1, start.text, ": ",
                      row_head(fault, moment));
  }
}
