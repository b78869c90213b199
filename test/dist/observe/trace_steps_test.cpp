// What traces amount to, of traces made by hand.

#include <doctest/doctest.h>

#include "lockstep/core/error.h"
#include "lockstep/tools/report/page.h"
#include "lockstep/tools/trace/steps.h"
#include "lockstep/tools/trace/timeline.h"
#include "support/text.h"

using namespace lockstep;
using namespace lockstep::traces;
using lockstep::test::contains;

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
      slice(10, 24, "collective", "bucket 0", 2, {{"sequence", 7}}),
      slice(10, 24, "step", "step 0", 2),
      slice(42, 58, "collective", "bucket 1", 2, {{"sequence", 8}}),
  };
  return trace;
}

/// A synchronization that lasts `length`, of one bucket of so many bytes. Its collective, number
/// `sequence` (-1: not traced), is in flight from 3 after its begin until 2 before its end.
struct Synchronized {
  const char* bucket;
  int bytes, sequence;
  double length;
};

/// One after another, with nothing between them.
RankTrace made_of(int rank, const std::vector<Synchronized>& all) {
  RankTrace trace{.rank = rank, .events = {}, .world = 2};
  const nlohmann::json none = nlohmann::json::object();
  std::vector<traces::Event> collectives;
  double begin = 100;
  for (const Synchronized& one : all) {
    const double end = begin + one.length;
    trace.events.push_back({begin + 1, end - 3, "backward", "a", 1, none});
    trace.events.push_back(
        {begin + 2, begin + 2, "launched", one.bucket, 1, {{"bucket", 0}, {"bytes", one.bytes}}});
    trace.events.push_back({end - 2, end, "wait", "wait", 1, none});
    trace.events.push_back({end, end, "verdict", "commit", 1, none});
    if (one.sequence >= 0)
      collectives.push_back({begin + 3,
                             end - 2,
                             "collective",
                             one.bucket,
                             2,
                             {{"sequence", one.sequence},
                              {"operation", "all_reduce"},
                              {"algorithm", "ring"},
                              {"elements", 1},
                              {"bytes", one.bytes}}});
    begin = end;
  }
  for (traces::Event& event : collectives) trace.events.push_back(std::move(event));
  return trace;
}

/// The whole time of each rank's steps, the same in the summary, on the page and in its steps.
std::vector<double> check_times(const std::vector<RankTrace>& all) {
  const std::vector<traces::Step> steps = steps_of(all);
  const std::vector<RankFigures> figures = figures_of(all, steps);
  const nlohmann::json page = page_data(all);
  std::vector<double> times;
  REQUIRE(page.at("steps").size() == steps.size());
  for (std::size_t r = 0; r < all.size(); ++r) {
    double sum = 0, sum_on_page = 0;
    for (const RankFigures& one : figures_by_step(all, steps, r)) sum += one.time;
    for (const auto& step : page.at("steps"))
      sum_on_page += step.at("ranks").at(r).at("time").get<double>();
    CHECK(sum == doctest::Approx(figures[r].time));
    CHECK(sum_on_page == doctest::Approx(figures[r].time));
    CHECK(page.at("figures").at(r).at("time") == figures[r].time);
    CHECK(contains(summary(all),
                   fmt::format("rank {:<6} {:>10.1f}", r, figures[r].time / double(steps.size()))));
    times.push_back(figures[r].time);
  }
  return times;
}

using Times = std::vector<double>;

}  // namespace

TEST_CASE("trace steps: of ranks with different numbers of verdicts, the steps that all have") {
  // Rank 1's trace ended early, or kept fewer events; then rank 0 was slow.
  const std::vector<Synchronized> first = {
      {"bucket 0", 8, 5, 10}, {"bucket 0", 8, 6, 20}, {"bucket 0", 8, 7, 30}};
  std::vector<Synchronized> longer = first;
  for (const int sequence : {8, 9, 10}) longer.push_back({"bucket 0", 8, sequence, 5000});
  const std::vector<RankTrace> early = {made_of(0, longer), made_of(1, first)};
  CHECK(check_times(early) == Times{50, 50});
  CHECK(contains(summary(early),
                 "of the 3 synchronizations that all ranks have: rank 0 has 6, rank 1 has 3."));
  CHECK_FALSE(contains(summary({made_of(0, first), made_of(1, first)}), "synchronizations"));

  // Without traced collectives their order counts.
  std::vector<Synchronized> unseen = longer, unseen_first = first;
  for (auto* all : {&unseen, &unseen_first})
    for (Synchronized& one : *all) one.sequence = -1;
  CHECK(check_times({made_of(0, unseen), made_of(1, unseen_first)}) == Times{50, 50});

  // Rank 0 also trains another model, of the same size, in a group of its own.
  std::vector<Synchronized> both;
  for (const Synchronized& one : first) {
    both.push_back({"bucket 0", 8, one.sequence - 4, 100});
    both.push_back(one);
  }
  const std::vector<RankTrace> groups = {made_of(0, both), made_of(1, first)};
  CHECK(check_times(groups) == Times{250, 50});
  for (const traces::Step& step : steps_of(groups))
    for (const traces::Step::Rank& rank : step.ranks) {  // of this model's synchronization alone
      REQUIRE(rank.buckets.size() == 1);
      CHECK(rank.buckets[0].launched == doctest::Approx(1));
      CHECK(rank.buckets[0].sequence == step.ranks[0].buckets[0].sequence);
    }

  CHECK_THROWS_WITH_AS(steps_of({made_of(0, first), made_of(1, {{"bucket 0", 8, 1, 10}})}),
                       doctest::Contains("0 synchronized steps that all ranks have"), DataError);
}

TEST_CASE("trace steps: the buckets of models that train in turn are apart") {
  std::vector<Synchronized> both;
  for (int step = 0; step < 4; ++step) {
    both.push_back({"bucket 0", 800, 2 * step, 50});
    both.push_back({"bucket 0, model 1", 4, 2 * step + 1, 10});
  }
  const std::vector<RankTrace> all = {made_of(0, both), made_of(1, both)};
  const std::map<std::string, double> cost = bucket_costs(steps_of(all));
  CHECK(cost == std::map<std::string, double>{{"bucket 0", 45}, {"bucket 0, model 1", 5}});
  const std::string text = summary(all);
  CHECK(contains(text, fmt::format("{:<17} {:>10} {:>10} {:>10} {:>10} {:>10}\n", "bucket 0", 800,
                                   "1.0", "1.0", "2.0", "47.0")));
  CHECK(contains(text, fmt::format("{:<17} {:>10} {:>10} {:>10} {:>10} {:>10}\n",
                                   "bucket 0, model 1", 4, "1.0", "1.0", "2.0", "7.0")));
}

TEST_CASE("trace steps: what a slice touches has it, once each") {
  RankTrace trace;
  const nlohmann::json none = nlohmann::json::object();
  for (const auto& [begin, end] :
       {std::pair(0.0, 35.0), std::pair(5.0, 10.0), std::pair(10.0, 10.0), std::pair(10.0, 11.0),
        std::pair(30.5, 31.0)})
    trace.events.push_back({begin, end, "forward", "f", 1, none});
  const auto parts = events_of_parts(trace, {10, 20, 30});
  REQUIRE(parts.size() == 3);
  const auto* all = trace.events.data();
  using Events = std::vector<const traces::Event*>;
  CHECK(parts[0] == Events{all, all + 1, all + 2, all + 3});
  CHECK(parts[1] == Events{all, all + 3});
  CHECK(parts[2] == Events{all});
}

TEST_CASE("trace steps: ranks without a trace are named") {
  const std::vector<Synchronized> some = {{"bucket 0", 8, 5, 10}, {"bucket 0", 8, 6, 20}};
  const std::vector<RankTrace> whole = {made_of(0, some), made_of(1, some)};
  CHECK(missing_ranks(whole) == "");
  const std::vector<RankTrace> part = {whole[1]};
  CHECK(missing_ranks(part) == "rank 0");
  CHECK(contains(summary(part), "rank 0 of 2 left no trace of this run"));
  CHECK(contains(summary(part), "\nrank 1  "));
  CHECK(contains(timeline(part, 1, 80), "\nrank 1  "));
  CHECK_THROWS_WITH_AS(page(part), doctest::Contains("rank 0 of 2 left no trace"), DataError);
}

TEST_CASE("trace steps: the figures of a step that was made by hand") {
  const std::vector<RankTrace> one = {made_by_hand(0, 1000)};
  const RankFigures f = figures_of(one, steps_of(one)).at(0);
  CHECK(f.time == doctest::Approx(80));
  CHECK(f.forward == doctest::Approx(5));
  CHECK(f.backward == doctest::Approx(10 + 30 - 4));
  CHECK(f.optimizer == doctest::Approx(10));
  CHECK(f.exposed == doctest::Approx(4 + 16));
  CHECK(f.in_flight == doctest::Approx(14 + 16));
  CHECK(f.hidden == doctest::Approx(10 + 2));
  CHECK(f.waits.at(1) == doctest::Approx(8));
}

TEST_CASE("trace steps: a slice that reaches beyond a verdict is shared by the steps") {
  // The waits in which both verdicts are reached end 0.5 after them; so do for whom they are.
  RankTrace one = made_by_hand(0, 1000);
  const auto slice = [](double begin, double end, const char* category) {
    return traces::Event{begin, end, category, category, 1, {{"rank", 1}}};
  };
  one.events.insert(one.events.begin() + 1, slice(970, 980.5, "wait"));
  one.events.insert(one.events.begin() + 2, slice(971, 980.5, "idle"));
  for (traces::Event& event : one.events)
    if (event.end == 1060 && event.category == "wait") event.end = 1060.5;
  const std::vector<traces::Step> steps = steps_of({one});
  for (const RankFigures& f : {figures_of({one}, steps)[0], figures_by_step({one}, steps, 0)[0]}) {
    CHECK(f.exposed == doctest::Approx(0.5 + 4 + 16));
    CHECK(f.waits.at(1) == doctest::Approx(0.5 + 8));
    CHECK(f.hidden == doctest::Approx(10 + 2));
  }
}

TEST_CASE("trace steps: buckets, what they cost, and the ideal") {
  // Rank 1 does the same 3 later.
  const std::vector<traces::Step> steps = steps_of({made_by_hand(0, 1000), made_by_hand(1, 1003)});
  REQUIRE(steps.size() == 1);
  REQUIRE(steps[0].ranks.size() == 2);
  const traces::Step::Rank& rank = steps[0].ranks[1];
  CHECK(rank.backward_begins == doctest::Approx(1003));
  CHECK(rank.backward_ends == doctest::Approx(1043));
  REQUIRE(rank.buckets.size() == 2);
  CHECK(rank.buckets[1].bytes == 800);
  CHECK(rank.buckets[1].ready == doctest::Approx(40));
  CHECK(rank.buckets[1].begun == doctest::Approx(42));
  CHECK(rank.buckets[1].arrived == doctest::Approx(58));
  const std::map<std::string, double> cost = bucket_costs(steps);
  REQUIRE(cost.size() == 2);
  CHECK(cost.at("bucket 0") == doctest::Approx(14));  // from 1013 to 1027
  CHECK(cost.at("bucket 1") == doctest::Approx(16));
  // Bucket 1 is ready everywhere at 1043, when backward ends, and bucket 0 has arrived.
  CHECK(ideal_exposed(steps[0], cost) == doctest::Approx(16));
  CHECK(ideal_exposed(steps[0], {{"bucket 0", 1000}, {"bucket 1", 16}}) ==
        doctest::Approx(1013 + 1000 + 16 - 1043));
  CHECK(ideal_exposed(steps[0], {{"bucket 0", 14}, {"bucket 1", 0}}) == 0);
}

TEST_CASE("trace steps: what is printed of them") {
  // The figures are those of the cases around this one; hidden: 12 of 30.
  CHECK(
      summary({made_by_hand(0, 1000), made_by_hand(1, 1003)}) ==
      "2 ranks, 1 step after the first\n\n"
      "us per step       step     load  forward backward   optim.  exposed    other in flight  "
      "of it hidden\n"
      "rank 0            80.0      0.0      5.0     36.0     10.0     20.0      9.0      30.0     "
      "      40%\n"
      "rank 1            80.0      0.0      5.0     36.0     10.0     20.0      9.0      30.0     "
      "      40%\n\n"
      "rank 0            bytes      ready   launched      begun    arrived   (us after backward "
      "began; medians)\n"
      "bucket 0            400       10.0       10.0       10.0       24.0\n"
      "bucket 1            800       40.0       40.0       42.0       58.0\n\n"
      "rank 0 waits 8.0 us per step for rank 1\n"
      "rank 1 waits 8.0 us per step for rank 1\n"
      "The same buckets, ready at the same times and moved by nobody's thread, would leave 16.0 us "
      "exposed (median).\n");
}

TEST_CASE("trace steps: a picture of it") {
  // One character for 2 us.
  const std::string text = timeline({made_by_hand(0, 1000)}, 1, 30 + 14);
  CHECK(text ==
        "step 1 of 1: from the begin of backward to the verdict, 60 us\n"
        "rank 0      |bbbbbbbbbbmmbbbbbbbb  mmmwwwwm|\n"
        "  bucket 0  |     r======                  |\n"
        "  bucket 1  |                    r======== |\n"
        "f forward  b backward  o optimizer  m moves bytes  w waits  blank: something else\n"
        "r ready  - waits for its turn  = in flight (r alone: for less than a column)\n");
  CHECK_THROWS_WITH_AS(timeline({made_by_hand(0, 0)}, 2, 80), doctest::Contains("no step 2"),
                       UsageError);
}

TEST_CASE("trace steps: traces without steps") {
  CHECK_THROWS_WITH_AS(steps_of({RankTrace{}}), doctest::Contains("0 synchronized steps"),
                       DataError);
}
