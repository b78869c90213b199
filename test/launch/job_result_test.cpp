// Which of several failures a launcher reports: a table of endings.

#include "lockstep/launch/job_result.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <climits>
#include <csignal>
#include <thread>

#include "lockstep/dist/rendezvous/events/failure_record.h"
#include "lockstep/launch/process.h"
#include "support/program.h"

using namespace lockstep::launch;
using lockstep::Blame, lockstep::Fault;
using lockstep::dist::FailureRecord;
using lockstep::test::contains;

namespace {

RankOutcome fine(int order) { return {.order = order}; }
RankOutcome code(int order, int exit_code) { return {.order = order, .exit_code = exit_code}; }
RankOutcome killed(int order, int signal) { return {.order = order, .signal = signal}; }
RankOutcome consequence(int order) {
  return {.order = order, .exit_code = 1, .record = FailureRecord{true, "rank x is gone"}};
}
RankOutcome cause(int order, int exit_code, const char* message) {
  return {.order = order, .exit_code = exit_code, .record = FailureRecord{false, message}};
}

JobResult judge_all(const std::vector<RankOutcome>& outcomes) { return result_of(outcomes); }

}  // namespace

TEST_CASE("result: success says nothing") {
  const JobResult result = judge_all({fine(1), fine(0)});
  CHECK(result.exit_code == 0);
  CHECK(result.report.empty());
}

TEST_CASE("result: ranks that succeed, and leave replicas that differ") {
  const auto leaves = [](int order, std::vector<lockstep::dist::ReplicaRecord> replicas) {
    RankOutcome outcome = fine(order);
    outcome.replicas = std::move(replicas);
    return outcome;
  };
  CHECK(judge_all({leaves(0, {{1, 5}, {2, 6}}), leaves(1, {{2, 6}, {1, 5}})}).exit_code == 0);
  CHECK(judge_all({leaves(0, {{1, 5}}), leaves(1, {{3, 6}})}).exit_code == 0);  // groups
  const JobResult result =
      judge_all({leaves(0, {{1, 5}}), leaves(1, {{1, 6}}), leaves(2, {{1, 5}})});
  CHECK(result.exit_code == 1);
  CHECK(result.report.find("error: rank 1 ended with another replica than ranks 0, 2: ") == 0);
  JobPlan plan;  // of a node with others before it
  plan.first_rank = 4;
  const std::vector<RankOutcome> two = {leaves(0, {{1, 5}}), leaves(1, {{1, 6}})};
  CHECK(contains(result_of(two, plan).report, "rank 4 and rank 5 ended with different replicas: "));
  // A failure comes first: the others were stopped in the middle.
  CHECK(judge_all({leaves(1, {{1, 5}}), leaves(2, {{1, 6}}), code(0, 7)}).exit_code == 7);
}

TEST_CASE("result: a signal, a code, a record") {
  CHECK(judge_all({fine(0), killed(1, SIGKILL)}).report ==
        "error: rank 1 was killed by signal 9 (Killed): perhaps out of memory\n");
  CHECK(judge_all({fine(0), killed(1, SIGKILL)}).exit_code == 1);
  CHECK(judge_all({fine(0), code(1, 7)}).report == "error: rank 1 failed with exit code 7\n");
  CHECK(judge_all({fine(0), code(1, 7)}).exit_code == 7);
  CHECK(judge_all({cause(0, 2, "--lr: 'x' is not a number"), fine(1)}).report ==
        "error: --lr: 'x' is not a number (reported by rank 0)\n");
}

TEST_CASE("result: who may have killed a rank") {
  // A shell says 137 for a child that was killed.
  CHECK(judge_all({fine(0), code(1, 137)}).report ==
        "error: rank 1 failed with exit code 137 (SIGKILL): perhaps out of memory\n");
  RankOutcome by_signal = killed(1, SIGKILL), by_code = code(1, 137);
  by_signal.out_of_memory = by_code.out_of_memory = true;
  const std::string why =
      ": probably out of memory, as the kernel's OOM killer has ended a process meanwhile";
  CHECK(judge_all({fine(0), by_signal}).report ==
        "error: rank 1 was killed by signal 9 (Killed)" + why + "\n");
  CHECK(judge_all({fine(0), by_code}).report ==
        "error: rank 1 failed with exit code 137 (SIGKILL)" + why + "\n");
  by_code.last_lines = {"one", "two"};
  CHECK(contains(judge_all({by_code}).report,
                 "a process meanwhile; the end of its stderr:\n  one\n  two\n"));
  // It has said itself why it ended; and other signals have other reasons.
  CHECK(judge_all({cause(0, 137, "[x] bad")}).report ==
        "error: rank 0 failed with exit code 137 (SIGKILL): [x] bad\n");
  for (const RankOutcome& outcome : {killed(0, SIGSEGV), killed(0, SIGTERM), code(0, 139)})
    CHECK_FALSE(contains(judge_all({outcome}).report, "memory"));
}

TEST_CASE("result: codes that shells and timeout(1) use for themselves become 1") {
  CHECK(judge_all({code(0, 123)}).exit_code == 123);
  for (int taken : {124, 125, 126, 127, 128, 137, 255})
    CHECK(judge_all({code(0, taken)}).exit_code == 1);
}

TEST_CASE("result: the first failure in time wins, not the lowest rank") {
  CHECK(judge_all({code(2, 5), code(1, 6), fine(0)}).exit_code == 6);
}

TEST_CASE("result: a cause beats consequences that were seen before it") {
  const std::vector<RankOutcome> outcomes{consequence(0), consequence(1),
                                          cause(2, 3, "[load] no such file")};
  CHECK(judge_all(outcomes).exit_code == 3);
  CHECK(judge_all(outcomes).report ==
        "error: rank 2 failed with exit code 3: [load] no such file\n");
  CHECK(contains(judge_all({consequence(0), killed(1, SIGSEGV)}).report,
                 "rank 1 was killed by signal 11"));
}

TEST_CASE("result: a rank killed by a signal beats what others said before") {
  const std::vector<RankOutcome> outcomes{cause(0, 3, "[rendezvous] timed out"), code(1, 4),
                                          killed(2, SIGKILL)};
  CHECK(judge_all(outcomes).report ==
        "error: rank 2 was killed by signal 9 (Killed): perhaps out of memory\n");
  CHECK(judge_all(outcomes).exit_code == 1);
  // Not so if it was the launcher that ended it.
  std::vector<RankOutcome> stopped = outcomes;
  stopped[2].stopped = true;
  CHECK(judge_all(stopped).exit_code == 3);
}

TEST_CASE("result: nothing is added to what a rank has said itself") {
  CHECK(judge_all({cause(0, 3, ""), fine(1)}).exit_code == 3);
  CHECK(judge_all({cause(0, 3, ""), fine(1)}).report.empty());
  RankOutcome and_killed = cause(0, 0, "");
  and_killed.signal = SIGKILL;
  CHECK(judge_all({and_killed, fine(1)}).report ==
        "error: rank 0 was killed by signal 9 (Killed): perhaps out of memory\n");
}

TEST_CASE("result: a rank that was about to report a consequence and then got killed is a cause") {
  RankOutcome both = consequence(1);
  both.exit_code = 0;
  both.signal = SIGKILL;
  CHECK(contains(judge_all({consequence(0), both}).report, "rank 1 was killed by signal 9"));
}

TEST_CASE("result: ranks that the launcher stopped are not to blame") {
  RankOutcome stopped = killed(1, SIGTERM);
  stopped.stopped = true;
  CHECK(contains(judge_all({stopped, consequence(0)}).report, "rank 1 failed with exit code 1"));
  CHECK(judge_all({stopped, fine(0)}).exit_code == 1);
}

TEST_CASE("result: with consequences only, ranks that ended well before are named") {
  // Nobody is blamed: they may be the cause.
  CHECK(judge_all({consequence(2), fine(1), fine(0)}).report ==
        "error: rank 0 failed with exit code 1: rank x is gone\n"
        "rank 1 had ended before, with exit code 0\n"
        "rank 2 had ended before, with exit code 0\n");
  CHECK_FALSE(contains(judge_all({consequence(0), fine(1)}).report, "ended"));
  // It ends after those that notice it, but they know who it was.
  RankOutcome knows = consequence(0);
  knows.record->blame = {{1}, Fault::gone};
  CHECK(contains(
      judge_all({knows, fine(1)}).report,
      "error: rank 1 ended with exit code 0 without the call that others wait in: rank x"));
  knows.order = 2;  // rank 2 has ended before, in peace
  const std::string report = judge_all({knows, fine(1), fine(0)}).report;
  CHECK(contains(report, "error: rank 1 ended with exit code 0"));
  CHECK_FALSE(contains(report, "rank 2"));
  knows.record->blame = {{1}, Fault::failed};  // it has answered: it made the call
  CHECK(contains(judge_all({knows, fine(1)}).report, "error: rank 1 failed: rank x"));
  CHECK_FALSE(contains(judge_all({code(1, 1), fine(0)}).report, "ended"));
}

TEST_CASE("result: a lost rank has not ended well, and who does not survive it is told so") {
  RankOutcome knows = consequence(1);
  knows.record->blame = {{1}, Fault::gone};
  const RankOutcome lost = {.order = 0, .lost = true};
  CHECK(judge_all({knows, lost}).report ==
        "error: rank 1 is gone: rank x is gone (reported by rank 0)\n");
  knows.left_behind = true;
  CHECK(judge_all({knows, lost}).report ==
        "error: rank 0 cannot go on with other ranks than before: its program has not called "
        "survive() (train has an option for it: --survive): rank x is gone\n");
  CHECK(judge_all({consequence(1), lost}).report ==
        "error: rank 0 failed with exit code 1: rank x is gone\n");
  RankOutcome own = cause(2, 1, "of its own");
  own.left_behind = true;
  CHECK(
      contains(judge_all({own, lost}).report, "error: rank 0 failed with exit code 1: of its own"));
}

TEST_CASE("result: whom an error blames comes first, and who has reported it last") {
  const auto blaming = [](int order, const Blame& blame) {
    RankOutcome outcome = cause(order, 1, "[all_reduce] timed out");
    outcome.record->blame = blame;
    return outcome;
  };
  using enum Fault;
  RankOutcome hung = killed(3, SIGKILL);
  hung.stopped = true;
  CHECK(judge_all({consequence(0), blaming(1, {{2}, hangs}), hung}).report ==
        "error: rank 2 hangs: [all_reduce] timed out (reported by rank 1)\n");
  // All tell the same, itself too; and one that blames nobody was first.
  CHECK(judge_all({blaming(1, {{1}, in_minority}), blaming(2, {{1}, in_minority})}).report ==
        "error: rank 1 is in the minority: [all_reduce] timed out\n");
  CHECK(judge_all({cause(0, 1, "x"), blaming(1, {{2, 3}, missing}), fine(2)}).report ==
        "error: ranks 2, 3 are missing: [all_reduce] timed out (reported by rank 1)\n");
  // Whom it blames has failed by itself, and knows better; rank 1 is not rank 10.
  CHECK(judge_all({blaming(0, {{1}, failed}), cause(1, 7, "[save] disk full")}).report ==
        "error: rank 1 failed with exit code 7: [save] disk full\n");
  CHECK(judge_all({blaming(0, {{10}, failed}), cause(1, 7, "[save] disk full")}).exit_code == 1);
  CHECK(contains(judge_all({blaming(0, {{1}, hangs}), killed(1, SIGSEGV)}).report,
                 "error: rank 1 was killed by signal 11"));
  JobPlan plan;  // on a node with others before it
  plan.first_rank = 4, plan.node = 1, plan.nodes = 2;
  const std::vector<RankOutcome> second{blaming(0, {{5}, failed}), cause(1, 7, "full")};
  CHECK(result_of(second, plan).report ==
        "error: rank 5 on node 1 failed with exit code 7: full\n");
  const std::vector<RankOutcome> first{blaming(0, {{1}, hangs}), hung};
  CHECK(result_of(first, plan).report ==
        "error: rank 1 hangs: [all_reduce] timed out (reported by rank 4 on node 1)\n");
}

TEST_CASE("result: the end of stderr stands in for a record") {
  RankOutcome outcome = code(0, 1);
  outcome.last_lines = {"a", "", "b"};
  CHECK(judge_all({outcome}).report ==
        "error: rank 0 failed with exit code 1; the end of its stderr:\n  a\n  \n  b\n");
  outcome.record = FailureRecord{false, "better"};
  CHECK(judge_all({outcome}).report == "error: rank 0 failed with exit code 1: better\n");
}

TEST_CASE("result: an interrupted run") {
  CHECK(interrupted_by(SIGINT).report == "error: stopped by signal 2 (Interrupt)\n");
  CHECK(interrupted_by(SIGINT).exit_code == 130);
}

TEST_CASE("output: lines however the bytes are cut") {
  const std::string text = "one\n\nthree\nlast";
  for (std::size_t piece = 1; piece <= text.size(); ++piece) {
    std::vector<std::string> lines;
    const auto take = [&](std::string_view line) { lines.emplace_back(line); };
    LineSplitter splitter;
    for (std::size_t at = 0; at < text.size(); at += piece)
      splitter.feed(std::string_view(text).substr(at, piece), take);
    CHECK(lines == std::vector<std::string>{"one", "", "three"});
    splitter.finish(take);
    CHECK(lines == std::vector<std::string>{"one", "", "three", "last"});
    splitter.finish(take);
    CHECK(lines.size() == 4);
  }
}

TEST_CASE("output: a line without end is cut") {
  std::vector<std::size_t> sizes;
  const auto take = [&](std::string_view line) { sizes.push_back(line.size()); };
  LineSplitter splitter;
  splitter.feed(std::string(2 * LineSplitter::longest_line + 5, 'x'), take);
  splitter.finish(take);
  CHECK(sizes ==
        std::vector<std::size_t>{LineSplitter::longest_line, LineSplitter::longest_line, 5});
}

TEST_CASE("output: a full pipe that does not block loses nothing") {
  lockstep::dist::Pipe ends = lockstep::dist::make_pipe();
  fcntl(ends.write_end.get(), F_SETFL, O_NONBLOCK);
  std::string text, got;
  for (int i = 0; i < 100'000; ++i) text += std::to_string(i);  // more than a pipe holds
  std::thread reader([&] {
    char buffer[4096];
    for (ssize_t n; (n = read(ends.read_end.get(), buffer, sizeof buffer)) > 0;)
      got.append(buffer, static_cast<std::size_t>(n));
  });
  lockstep::dist::write_all(ends.write_end.get(), text);
  ends.write_end.close();
  reader.join();
  CHECK((got == text));
}

namespace {

RankOutcome misses(int order, const Blame& blame) {
  return {.order = order, .exit_code = 1, .record = FailureRecord{true, "[x] lost", blame}};
}

/// The report of a job whose nodes have ended so; `first_ranks`: of each node.
std::string report_of(const std::vector<std::vector<RankOutcome>>& nodes) {
  std::vector<JobResult> results;
  JobPlan plan;
  plan.nodes = static_cast<int>(nodes.size());
  for (const auto& outcomes : nodes) {
    plan.ranks = static_cast<int>(outcomes.size());
    results.push_back(result_of(outcomes, plan));
    plan.first_rank += plan.ranks;
    ++plan.node;
  }
  return results[first_of(results)].report;
}

}  // namespace

TEST_CASE("result: who is only missed because it had missed another is not named") {
  // Rank 2 has left. Rank 3 has seen that, ranks 0 and 1 only that rank 3 has ended.
  using enum Fault;
  for (const Blame& echo : {Blame{{3}, gone}, Blame{{3}, left}, Blame{}}) {
    const std::string report =
        report_of({{misses(0, echo), misses(1, echo)}, {fine(0), misses(1, {{2}, gone})}});
    INFO(report);
    CHECK(report.starts_with("error: rank 2 on node 1 ended with exit code 0 without the call"));
  }
  // Of one node, whoever ended first.
  const std::string chain = report_of(
      {{misses(3, {{1}, gone}), misses(1, {{2}, gone}), misses(2, {{3}, gone}), fine(0)}});
  CHECK(chain.starts_with("error: rank 3 ended with exit code 0 without the call"));
  // The launcher has stopped rank 3, as rank 2 had failed; and of several that are gone.
  RankOutcome stopped = killed(2, SIGTERM);
  stopped.stopped = true;
  CHECK(report_of({{misses(0, {{3}, gone}), fine(1)}, {misses(1, {{1}, left}), stopped}})
            .starts_with("error: rank 1 left: "));
  CHECK(report_of({{misses(0, {{2, 3}, gone})},
                   {misses(0, {{3}, left})},
                   {misses(1, {{3}, left}), fine(0)}})
            .starts_with("error: rank 3 left: "));
  // Three nodes: the one that knows is the last.
  CHECK(report_of({{misses(0, {{1}, gone})}, {misses(0, {})}, {misses(0, {{3}, left}), fine(1)}})
            .starts_with("error: rank 3 on node 2 ended with exit code 0 without the call"));
  // Whom others found hanging is no echo because it has then heard of that.
  const RankOutcome timed_out = {
      .order = 0, .exit_code = 1, .record = FailureRecord{false, "[x] timed out", {{1}, hangs}}};
  CHECK(report_of({{timed_out}, {misses(1, {{0}, gone})}}).starts_with("error: rank 1 hangs: "));
}

TEST_CASE("result: who ends inside of the World that others have ended has left") {
  const auto ends = [](bool in_world, bool parted) {
    RankOutcome outcome;
    outcome.in_world = in_world;
    outcome.parted = parted;
    return outcome;
  };
  const auto judge = [](const std::vector<RankOutcome>& outcomes) { return result_of(outcomes); };
  const std::string left =
      "error: rank 1 left with exit code 0 inside of a World that others have ended\n";
  const RankOutcome parted = ends(false, true), leaver = ends(true, false),
                    stranger = ends(false, false);
  CHECK(judge({parted, leaver}).report == left);
  CHECK(judge({parted, leaver}).exit_code == 1);
  CHECK(judge({parted, leaver, leaver}).report.starts_with("error: ranks 1, 2 left with"));
  CHECK(judge({leaver, leaver}).exit_code == 0);  // all by exit()
  CHECK(judge({parted, stranger}).exit_code == 0);
  CHECK(judge({stranger, leaver}).exit_code == 0);
  RankOutcome failed = leaver;
  failed.exit_code = 7;
  CHECK(judge({parted, leaver, failed}).exit_code == 7);  // that comes first
  // On nodes, together; and not where ranks may be lost.
  JobPlan plan;
  plan.nodes = 2;
  const std::vector<RankOutcome> here = {parted}, there = {leaver};
  std::vector<JobResult> results = {result_of(here, plan)};
  plan.node = plan.first_rank = 1;
  results.push_back(result_of(there, plan));
  CHECK(compare_ends(results).report == left);
  plan.respawn = 0;
  results.back() = result_of(there, plan);
  CHECK(compare_ends(results).exit_code == 0);
}
