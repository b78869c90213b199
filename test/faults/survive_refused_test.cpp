// Programs under survive() that do what does not go together with losing ranks: each gets one clear
// line. survivor (support/programs/survivor.cpp) loses rank 1 in its third step.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "support/expect.h"
#include "support/program.h"

using lockstep::test::Ended;
namespace test = lockstep::test;

namespace {

Ended survivor(const std::string& deed, bool survives = true) {
  std::vector<std::string> words = {LOCKSTEP_BIN_DIR "/lockstep-run", "-n", "4"};
  if (survives) words.push_back("--survive");
  words.insert(words.end(), {LOCKSTEP_BIN_DIR "/survivor", deed});
  return test::run(words);
}

}  // namespace

TEST_CASE("survive: a program that does what is right goes on") {
  const Ended ended = survivor("nothing");
  CHECK(ended.code == 0);
  test::expect(ended.err == "rank 1 was killed by SIGKILL; 3 ranks go on\n", "{}", ended.err);
}

TEST_CASE("survive: a program of one's own is refused what cannot go on, before it loses a rank") {
  const std::pair<const char*, const char*> refused[] = {
      {"shard",
       "a sharded optimizer cannot go on without a lost rank: each rank keeps a part of its "
       "state, which is lost with it"},
      {"trace", "a Trace cannot go on without a lost rank: it belongs to one world"},
      {"hash-trace", "a HashTrace cannot go on without a lost rank: it belongs to one world"},
      {"async-checkpoint", "an asynchronous checkpoint cannot go on without a lost rank"},
      {"mpi", "comm mpi cannot go on without a lost rank"}};
  for (const auto& [deed, text] : refused) {
    const Ended ended = survivor(deed);
    CAPTURE(deed);
    CHECK(ended.code == 2);
    test::expect(ended.err.starts_with(std::string("error: [survive] ") + text), "{}", ended.err);
    CHECK(std::ranges::count(ended.err, '\n') == 1);
  }
}

TEST_CASE("survive: lanes refuse a communication hook, whatever it keeps") {
  const Ended ended = survivor("hook");
  CHECK(ended.code == 1);
  test::expect(test::contains(ended.err, "a communication hook rounds what this rank has added"),
               "{}", ended.err);
}

TEST_CASE("survive: BatchNorm that was synchronized with an ended world says so") {
  const Ended ended = survivor("sync-outside");
  CHECK(ended.code == 1);
  test::expect(test::contains(ended.err, "rank 1 was killed by SIGKILL; 3 ranks go on\nerror: "),
               "{}", ended.err);
  test::expect(test::contains(ended.err,
                              "the world with which layer '1' was synchronized has ended: call "
                              "convert_sync_batchnorm for each world, in the body of survive()\n"),
               "{}", ended.err);
  CHECK(std::ranges::count(ended.err, '\n') == 2);
}

TEST_CASE("survive: a DDP that outlives its world is refused") {
  for (const char* deed : {"ddp-outside", "ddp-kept"}) {
    const Ended ended = survivor(deed);
    CAPTURE(deed);
    CHECK(ended.code == 1);
    test::expect(test::contains(ended.err,
                                "[survive] a DistributedDataParallel that was made outside of the "
                                "body needs this world"),
                 "{}", ended.err);
    CHECK(test::contains(ended.err, "go on\n") == (deed == std::string("ddp-kept")));
  }
}

TEST_CASE("survive: a body that leaves out what it must do is refused") {
  const std::string lost = "rank 1 was killed by SIGKILL; 3 ranks go on\n";
  struct Refused {
    const char* deed;
    std::string before, text;
  };
  const Refused refused[] = {
      {"no-share", "", ": [survive] nn::Checkpoint::share(world, step) comes before Distributed"},
      {"no-mark", "", ": an optimizer has stepped and the step is not marked. If a rank was lost"},
      {"one-no-mark", "",
       ": an optimizer has stepped and the step is not marked. If a rank was lost"},
      {"no-progress", lost,
       ": [share] progress is 0, and was 0 when the state was shared last; since "
       "then "}};  // 1 or 2
  for (const auto& [deed, before, text] : refused) {
    const Ended ended = survivor(deed);
    CAPTURE(deed);
    CHECK(ended.code == 1);
    test::expect(ended.err.starts_with(before + "error: rank "), "{}", ended.err);
    test::expect(test::contains(ended.err, text), "{}", ended.err);
    CHECK(std::ranges::count(ended.err, '\n') == (before.empty() ? 1 : 2));
  }
}

TEST_CASE("survive: after a loss ranks are named as the launcher numbers them") {
  const Ended ended = survivor("wrong");
  CHECK(ended.code == 1);
  test::expect(test::contains(ended.err, "error: rank 3 is in the minority: "), "{}", ended.err);
  test::expect(test::contains(ended.err, " on rank 3, "), "{}", ended.err);
  test::expect(test::contains(ended.err, " on ranks 0, 2: rank 3 is in the minority"), "{}",
               ended.err);
}

TEST_CASE("survive: a program that does not call survive() is told so") {
  const Ended ended = survivor("not-called");
  CHECK(ended.code == 1);
  test::expect(
      test::contains(ended.err, "rank 1 was killed by SIGKILL; 3 ranks go on\nerror: rank "), "{}",
      ended.err);
  test::expect(test::contains(ended.err,
                              " cannot go on with other ranks than before: its program has not "
                              "called survive() (train has an option for it: --survive): ["),
               "{}", ended.err);
  CHECK(std::ranges::count(ended.err, '\n') == 2);
}

TEST_CASE("survive: without --survive the same programs train as ever") {
  for (const char* deed : {"shard", "sync-outside", "ddp-outside", "no-share", "no-mark"}) {
    const Ended ended = survivor(deed, false);
    CAPTURE(deed);
    CHECK(ended.code == 1);  // rank 1 kills itself
    test::expect(ended.err.starts_with("error: rank 1 was killed by signal 9"), "{}", ended.err);
  }
}
