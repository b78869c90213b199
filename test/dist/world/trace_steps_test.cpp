// What traces amount to, of traces made by hand.

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "lockstep/core/error.h"
#include "lockstep/tools/trace/steps.h"
#include "lockstep/tools/trace/timeline.h"
#include "support/temporary_folder.h"

using namespace lockstep;
using namespace lockstep::traces;

namespace {

/// Two steps of a rank; times of the second one are `from` + what the comments say.
///
///     0   backward a         10   ready 0, launched 0    20..24   progress
///     10  backward b         40   ready 1, launched 1    44..60   wait, of it 50..58 for rank 1
///     bucket 0 in flight 10..24, bucket 1 42..58; verdict at 60; optimizer 62..70
RankTrace made_by_hand(int rank, double from) {
  const auto slice = [&](double begin, double end, const char* category, const char* name,
                         int track = 1, nlohmann::json arguments = nlohmann::json::object()) {
    return traces::Event{from + begin, from + end, category, name, track, std::move(arguments)};
  };
  const auto at = [&](double time, const char* category, const char* name,
                      const nlohmann::json& arguments = nlohmann::json::object()) {
    return slice(time, time, category, name, 1, arguments);
  };
  RankTrace trace{.rank = rank, .events = {}};
  trace.events = {
      at(-20, "verdict", "commit"),
      slice(-18, -8, "optimizer", "step"),
      slice(-6, -1, "forward", "linear"),
      slice(0, 10, "backward", "a"),
      at(10, "ready", "w1", {{"bucket", 0}, {"pending", 0}}),
      at(10, "launched", "bucket 0", {{"bucket", 0}, {"bytes", 400}}),
      slice(10, 40, "backward", "b"),
      slice(20, 24, "progress", "progress"),
      at(40, "ready", "w0", {{"bucket", 1}, {"pending", 0}}),
      at(40, "launched", "bucket 1", {{"bucket", 1}, {"bytes", 800}}),
      slice(44, 60, "wait", "wait"),
      slice(50, 58, "idle", "for rank 1", 1, {{"rank", 1}}),
      at(60, "verdict", "commit"),
      slice(62, 70, "optimizer", "step"),
      slice(10, 24, "collective", "bucket 0", 2),
      slice(10, 24, "step", "step 0", 2),
      slice(42, 58, "collective", "bucket 1", 2),
  };
  return trace;
}

}  // namespace

TEST_CASE("trace steps: the figures of a step that was made by hand") {
  const RankFigures f = figures_of(made_by_hand(0, 1000));
  CHECK(f.time == doctest::Approx(80));
  CHECK(f.forward == doctest::Approx(5));
  CHECK(f.backward == doctest::Approx(10 + 30 - 4));
  CHECK(f.optimizer == doctest::Approx(10));
  CHECK(f.exposed == doctest::Approx(4 + 16));
  CHECK(f.in_flight == doctest::Approx(14 + 16));
  CHECK(f.hidden == doctest::Approx(10 + 2));
  CHECK(f.waits.at(1) == doctest::Approx(8));
}

TEST_CASE("trace steps: buckets, what they cost, and the ideal") {
  // Rank 1 does the same 3 later.
  const std::vector<Step> steps = steps_of({made_by_hand(0, 1000), made_by_hand(1, 1003)});
  REQUIRE(steps.size() == 1);
  REQUIRE(steps[0].ranks.size() == 2);
  const Step::Rank& rank = steps[0].ranks[1];
  CHECK(rank.backward_begins == doctest::Approx(1003));
  CHECK(rank.backward_ends == doctest::Approx(1043));
  REQUIRE(rank.buckets.size() == 2);
  CHECK(rank.buckets[1].bytes == 800);
  CHECK(rank.buckets[1].ready == doctest::Approx(40));
  CHECK(rank.buckets[1].begun == doctest::Approx(42));
  CHECK(rank.buckets[1].arrived == doctest::Approx(58));
  const std::vector<double> cost = bucket_costs(steps);
  REQUIRE(cost.size() == 2);
  CHECK(cost[0] == doctest::Approx(14));  // from 1013 to 1027
  CHECK(cost[1] == doctest::Approx(16));
  // Bucket 1 is ready everywhere at 1043, when backward ends, and bucket 0 has arrived.
  CHECK(ideal_exposed(steps[0], cost) == doctest::Approx(16));
  CHECK(ideal_exposed(steps[0], {1000, 16}) == doctest::Approx(1013 + 1000 + 16 - 1043));
  CHECK(ideal_exposed(steps[0], {14, 0}) == 0);
}

TEST_CASE("trace steps: a picture of it") {
  // One character for 2 us.
  const std::string text = timeline({made_by_hand(0, 1000)}, 1, 30 + 14);
  CHECK(text ==
        "step 1 of 1: from the begin of backward to the verdict, 60 us\n"
        "rank 0      |bbbbbbbbbbmmbbbbbbbb  mmmwwwwm|\n"
        "  bucket 0  |     r======                  |\n"
        "  bucket 1  |                    r======== |\n"
        "b backward  m moves bytes  w waits   r ready  - waits for its turn  = in flight\n");
  CHECK_THROWS_WITH_AS(timeline({made_by_hand(0, 0)}, 2, 80), doctest::Contains("no step 2"),
                       UsageError);
}

TEST_CASE("trace steps: traces without steps, and what is no trace") {
  CHECK_THROWS_WITH_AS(steps_of({RankTrace{}}), doctest::Contains("0 synchronized steps"),
                       DataError);
  CHECK_THROWS_AS(figures_of(RankTrace{}), DataError);
  const test::TemporaryFolder folder;
  CHECK_THROWS_WITH_AS(read_traces(folder / "none"), doctest::Contains("cannot read"), DataError);
  for (const char* text : {"", "{", "[]", "{}", R"({"otherData":{}})",
                           R"({"otherData":{"rank":0,"world":1,"run":"a","dropped":0,
                               "clock_uncertainty_us":0},"traceEvents":[{"ph":"X"}]})"}) {
    CAPTURE(text);
    std::ofstream(folder / "rank-0.json") << text;
    CHECK_THROWS_AS(read_traces(folder.path()), DataError);
  }
}
