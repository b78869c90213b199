// Audits of programs: `train --audit`, and ranks that are wrong in a job that survives.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lockstep/core/lanes.h"
#include "support/expect.h"
#include "support/program.h"

using namespace lockstep;
using lockstep::test::Ended;

namespace {

using Arguments = std::vector<std::string>;

/// audited_run on so many ranks; a victim -1 is nobody.
Ended audited_run(int ranks, bool survives, int victim, int lane, int first,
                  const char* times = "always") {
  Arguments words = {LOCKSTEP_BIN_DIR "/lockstep-run", "-n", std::to_string(ranks)};
  if (survives) words.push_back("--survive");
  words.push_back(LOCKSTEP_BIN_DIR "/audited_run");
  for (const int number : {victim, lane, first}) words.push_back(std::to_string(number));
  words.push_back(times);
  return test::run(words);
}

const std::string& undisturbed() {
  static const std::string hash = [] {
    const Ended ended = audited_run(1, false, -1, 0, 0);
    test::expect(ended.code == 0, "{}", ended.err);
    return ended.out.substr(0, 64);
  }();
  return hash;
}

}  // namespace

TEST_CASE("audited: a rank that is wrong is named, and ends the job") {
  for (const int victim : {0, 1, 2}) {
    const LaneRange own = lanes_of({victim, 3}, 8);
    const Ended ended = audited_run(3, false, victim, own.first, 1);
    CHECK(ended.code == 1);
    CAPTURE(ended.err);
    CHECK(test::contains(ended.err, fmt::format("rank {} computed lane {} wrongly: element 9 of "
                                                "'3.weight' is ",
                                                victim, own.first)));
    CHECK(std::ranges::count(ended.err, '\n') == 1);
  }
}

TEST_CASE("audited: the others go on without a rank that is wrong, and reach the same bits") {
  for (const int ranks : {3, 4})
    for (int victim = 0; victim < ranks; ++victim) {
      const LaneRange own = lanes_of({victim, ranks}, 8);
      // Within 2 steps for each lane it is found; before that, no wrong step is taken.
      const int first = 2 * (victim + 1 + 4 * own.count), lane = own.first + own.count - 1;
      int step = first;
      while (own.first + step / 2 % own.count != lane) step += 2;
      const Ended ended = audited_run(ranks, true, victim, lane, step);
      CAPTURE(ended.err);
      CHECK(ended.code == 0);
      CHECK(test::contains(
          ended.err,
          fmt::format("rank {} computed wrongly (lane {} in step {}, "
                      "element 9 of '3.weight') and was killed by SIGKILL; {} ranks go on",
                      victim, lane, step, ranks - 1)));
      CHECK(ended.out == fmt::format("{} {}\n", undisturbed(), ranks - 1));
    }
}

TEST_CASE("audited: of two ranks the wrong one is lost if it is not wrong again") {
  // Rank 1 owns lanes 4 to 7; step 6, the third audit, is that of lane 7.
  const Ended once = audited_run(2, true, 1, 7, 6, "once");
  CAPTURE(once.err);
  CHECK(test::contains(once.err,
                       "rank 1 computed wrongly (lane 7 in step 6, element 9 of '3.weight') "
                       "and was killed by SIGKILL; 1 rank goes on"));
  CHECK(once.out == undisturbed() + " 1\n");
  const Ended always = audited_run(2, true, 1, 7, 6);
  CAPTURE(always.err);
  CHECK(always.code == 1);
  CHECK(test::contains(always.err,
                       "rank 1 or rank 0 computed lane 7 wrongly: element 9 of "
                       "'3.weight' is "));
  CHECK(test::contains(always.err, "there is no majority"));
}

TEST_CASE("audited: train has the same bits, and refuses what cannot be audited") {
  const auto train = [](const Arguments& options) {
    Arguments words = {LOCKSTEP_BIN_DIR "/train_mlp", "--epochs", "2", "--deterministic", "world"};
    words.insert(words.end(), options.begin(), options.end());
    return test::run(words);
  };
  const auto hash = [&](const Arguments& options) {
    const Ended ended = train(options);
    test::expect(ended.code == 0, "{}", ended.err);
    const std::size_t at = ended.out.find("sha256=");
    return at == ended.out.npos ? ended.out : ended.out.substr(at, 71);
  };
  const std::string alone = hash({"--ranks", "1"});
  for (const char* ranks : {"1", "2", "3"})
    CHECK(hash({"--ranks", ranks, "--audit", "1"}) == alone);
  CHECK(hash({"--ranks", "2", "--audit", "3", "--survive"}) == alone);
  const std::pair<Arguments, const char*> refused[] = {
      {{"--audit", "-5"}, "--audit"},
      {{"--audit", "5", "--deterministic", "run"}, "--audit needs --lanes"}};
  for (const auto& [options, text] : refused) {
    Arguments words = {LOCKSTEP_BIN_DIR "/train_mlp", "--epochs", "1"};
    if (options.size() < 4) words.insert(words.end(), {"--lanes", "8"});
    words.insert(words.end(), options.begin(), options.end());
    const Ended ended = test::run(words);
    CHECK(ended.code == (*text ? 2 : 0));
    test::expect(test::contains(ended.err, text), "{}", ended.err);
  }
}
