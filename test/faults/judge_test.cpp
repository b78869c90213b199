// The judge of the fault drill: that it finds what must not be, and whom messages blame.

#include <doctest/doctest.h>
#include <fmt/ranges.h>

#include <functional>

#include "faults/cell.h"

using namespace lockstep::test;

namespace {

/// Rank 1 is killed between steps, under lockstep-run.
Cell a_cell() {
  for (const Cell& cell : all_cells())
    if (cell.victim == 1 && *cell.moment == "between steps") return cell;
  FAIL("there is none");
  return {};
}

/// All is as it must be.
Seen as_promised() {
  Seen seen;
  seen.reached = seen.ended = seen.checkpoint_old = true;
  seen.codes = {1};
  seen.signals = {0};
  seen.err = "error: rank 1 was killed by signal 9 (Killed): perhaps out of memory\n";
  seen.said = {"[all_reduce] rank 0, #7 'bucket 0': rank 1 is gone", "", ""};
  return seen;
}

}  // namespace

TEST_CASE("faults: whom a message blames") {
  const std::vector<std::pair<std::string, std::vector<int>>> cases = {
      {"[all_reduce] rank 0, #5 'bucket 0': timed out after 10 s, waiting for rank 2, which has "
       "not "
       "moved: rank 0 waits for rank 3 (step 1 of 6), which waits for rank 2",
       {2}},
      {"[x] rank 0, #1 'a': timed out after 2 s, waiting for rank 1, rank 3 of the world, which",
       {3}},
      {"[all_gather] rank 1, #46 'on_rank0': rank 0 gave up in all_gather #46: rank 2 is gone",
       {2}},
      {"[all_gather] rank 1, #46 'on_rank0': rank 2 was ended by an error of its own", {2}},
      {"[on_rank0] rank 0 failed: the disk is full", {0}},
      {"[rendezvous] after 2 s at unix:/x ranks 1, 2 are missing of a world of 3", {1, 2}},
      {"[rendezvous] rank 2: rank 0 no longer listens on 127.0.0.1:1: Connection refused", {0}},
      {"[rendezvous] rank 2 did not find rank 0 at unix:/x within 2 s: timed out", {0}},
      {"[rendezvous] rank 2: no answer from rank 0 at unix:/x within 2 s", {0}},
      {"[save] cannot create 'x'", {}},
  };
  for (const auto& one : cases) CHECK_MESSAGE(blamed(one.first) == one.second, one.first);
}

TEST_CASE("faults: the judge finds all that must not be, and nothing else") {
  const Cell cell = a_cell();
  CHECK(judge(cell, as_promised()).wrong.empty());
  const std::vector<std::pair<const char*, std::function<void(Seen&)>>> flaws = {
      {"the fault never came", [](Seen& s) { s.reached = false; }},
      {"a hang", [](Seen& s) { s.ended = false; }},
      {"an orphan", [](Seen& s) { s.left_running = 1; }},
      {"a late error", [](Seen& s) { s.slowest_said = timeout + 2; }},
      {"a silent success", [](Seen& s) { s.codes = {0}; }},
      {"a launcher that names another",
       [](Seen& s) { s.err = "error: rank 2 was killed by signal 9 (Killed)\n"; }},
      {"a launcher that says nothing", [](Seen& s) { s.err = ""; }},
      {"a checkpoint in pieces", [](Seen& s) { s.checkpoint_old = false; }},
      {"an unfinished checkpoint for ever", [](Seen& s) { s.next_save_cleans = false; }},
  };
  for (const auto& flaw : flaws) {
    Seen seen = as_promised();
    flaw.second(seen);
    CHECK_MESSAGE(!judge(cell, seen).wrong.empty(), flaw.first);
  }
}

TEST_CASE("faults: without a launcher of ours a survivor that blames another is wrong") {
  for (const Cell& cell : all_cells()) {
    if (cell.start->ends_ranks || cell.fault->name != "SIGKILL" || cell.victim != 1 ||
        *cell.moment != "between steps")
      continue;
    Seen seen = as_promised();
    seen.codes = {1, -1, 1};
    seen.signals = {0, 9, 0};
    CHECK(judge(cell, seen).wrong.empty());
    seen.said[2] = "[all_reduce] rank 2, #7 'bucket 0': rank 0 is gone";
    const Verdict verdict = judge(cell, seen);
    CHECK(verdict.wrong.size() == 1);
    CHECK(verdict.survivors == 2);
    CHECK(verdict.survivors_right == 1);
  }
}
