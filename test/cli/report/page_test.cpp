// `lockstep report`: the page of a run's traces, and what a browser shows of it.

#include "lockstep/tools/report/page.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/sample.h"
#include "lockstep/core/error.h"
#include "lockstep/tools/trace/steps.h"
#include "support/program.h"
#include "support/temporary_folder.h"

using namespace lockstep;
using lockstep::test::contains;
using lockstep::test::Ended;
using lockstep::test::TemporaryFolder;

namespace {

/// A trained run's traces in `folder`/t.
void train_traced(const TemporaryFolder& folder, const std::string& ranks) {
  const Ended trained = test::run(test::sample_command(
      "train_mlp", {"--trace", folder / "t", "--epochs", "2", "--bucket-cap-mb", "0.03", "--ranks",
                    ranks, "--comm", "ring"}));
  INFO(trained.err);
  REQUIRE(trained.code == 0);
}

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// What lies between two texts, the first time that they occur.
std::string between(const std::string& text, const std::string& begin, const std::string& end) {
  const std::size_t from = text.find(begin);
  if (from == text.npos) return "";
  const std::size_t first = from + begin.size();
  return text.substr(first, text.find(end, first) - first);
}

/// What a page says of itself in a browser.
nlohmann::json selftest_of(const std::string& chromium, const TemporaryFolder& folder,
                           const std::string& page) {
  const Ended ended =
      test::run({chromium, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
                 "--user-data-dir=" + (folder / "profile"), "--virtual-time-budget=5000",
                 "--dump-dom", "file://" + page + "#selftest"});
  INFO(ended.err);
  CHECK_FALSE(contains(ended.err, "CONSOLE"));
  const std::string found = between(ended.out, R"(<pre id="selftest">)", "</pre>");
  REQUIRE(found != "");
  return nlohmann::json::parse(found);
}

nlohmann::json selftest_of_page(const std::string& chromium, const TemporaryFolder& folder) {
  REQUIRE(test::run({LOCKSTEP_BIN_DIR "/lockstep_report", folder / "t"}).code == 0);
  return selftest_of(chromium, folder, folder / "t/report.html");
}

/// Two steps, and these values of one curve.
traces::RankTrace with_curve(const std::vector<std::int64_t>& at,
                             const std::vector<double>& values) {
  traces::RankTrace trace;
  const nlohmann::json none = nlohmann::json::object();
  for (const double begin : {0.0, 100.0, 200.0}) {
    trace.events.push_back({begin, begin, "verdict", "commit", 1, none});
    trace.events.push_back({begin + 10, begin + 20, "backward", "a", 1, none});
  }
  for (std::size_t k = 0; k < at.size(); ++k)
    trace.values.push_back({10.0 * static_cast<double>(k), "train/loss", at[k], values[k]});
  return trace;
}

/// A number that the page shows, to five digits.
void check_shown(const nlohmann::json& text, double number) {
  CHECK(std::stod(text.get<std::string>()) == doctest::Approx(number).epsilon(1e-4));
}

/// The charts at the top of the page, against rank 0's trace.
void check_curves(const nlohmann::json& training, const traces::RankTrace& trace,
                  const std::vector<traces::Step>& steps) {
  CHECK(training.at("hidden") == false);
  std::map<std::string, std::vector<traces::Value>> curves;
  for (const traces::Value& value : trace.values) curves[value.name].push_back(value);
  REQUIRE(training.at("table").size() == 1 + curves.size());
  for (const auto& row : training.at("table")) {
    if (row.at(0) == "") continue;  // its head
    CAPTURE(row.dump());
    const auto& values = curves.at(row.at(0));
    CHECK(row.at(1) == std::to_string(values.size()));
    check_shown(row.at(2), values.front().number);
    check_shown(row.at(3), values.back().number);
    const auto [least, most] = std::ranges::minmax_element(values, {}, &traces::Value::number);
    check_shown(row.at(4), least->number);
    check_shown(row.at(5), most->number);
  }
  const std::vector<traces::Value>& losses = curves.at("train/loss");
  const auto& shown = training.at("shown");
  const std::map<std::string, std::size_t> keys = {
      {"Home", 0}, {"ArrowRight", 4}, {"ArrowLeft", 3}, {"End", losses.size() - 1}};
  for (const auto& [key, k] : keys) {
    const std::string text = shown.at(key);
    CAPTURE(text);
    // At the end the epoch's loss is the newest.
    const double time = key == "End" ? curves.at("epoch/loss").back().time : losses[k].time;
    CHECK(contains(text,
                   fmt::format("Step {}, at {:.3f} s: train/loss ", losses[k].step, time / 1e6)));
    check_shown(between(text, "train/loss ", ","), losses[k].number);
  }
  CHECK(contains(shown.at("End").get<std::string>(), ", epoch/loss "));
  CHECK(training.at("chosen") == steps.size() - 1);
  CHECK(training.at("columns") > training.at("width").get<int>() / 2);
}

/// The table of a step's buckets. The model's gradients are ready from the last layer to the first.
void check_buckets(const nlohmann::json& rows, const traces::Step& step) {
  const std::vector<traces::BucketTimes>& buckets = step.ranks[0].buckets;
  REQUIRE(rows.size() == 3 * buckets.size());
  std::string ready;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const std::size_t rank = r / buckets.size(), bucket = r % buckets.size();
    CHECK(rows[r].at(0) == fmt::format("rank {}, {}", rank, buckets[bucket].name));
    CHECK(rows[r].at(1) == rows[bucket].at(1));
    if (rank == 0) ready += rows[r].at(1).get<std::string>() + "; ";
  }
  CHECK(ready == "4.weight, 4.bias; 2.weight; 2.bias; 0.weight; 0.bias; ");
}

std::string browser() {
  for (const char* name : {"chromium", "chromium-browser", "google-chrome"})
    if (const Ended found = test::run({"/bin/sh", "-c", std::string("command -v ") + name});
        found.code == 0)
      return found.out.substr(0, found.out.find('\n'));
  return "";
}

}  // namespace

TEST_CASE("report: a page that needs no network, with the numbers of the trace") {
  const TemporaryFolder folder;
  train_traced(folder, "3");
  const Ended ended = test::run({LOCKSTEP_BIN_DIR "/lockstep_report", folder / "t"});
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  CHECK(ended.err == "");
  const std::string page = text_of(folder / "t/report.html");
  CHECK_FALSE(contains(page, "http:"));
  CHECK_FALSE(contains(page, "https:"));
  CHECK_FALSE(contains(page, "@@"));
  CHECK(test::count(page, "<script") == 2);
  const auto data = nlohmann::json::parse(
      between(page, R"(<script id="data" type="application/json">)", "</script>"));
  const auto all = traces::read_traces(folder / "t");
  const auto steps = traces::steps_of(all);
  REQUIRE(data.at("ranks").size() == 3);
  REQUIRE(data.at("steps").size() == steps.size());
  const auto figures = traces::figures_of(all, steps);
  for (std::size_t r = 0; r < 3; ++r) {
    const traces::RankFigures& f = figures[r];
    CHECK(data.at("figures").at(r).at("exposed") == f.exposed);
    CHECK(data.at("figures").at(r).at("hidden") == f.hidden);
    // The events, unpacked as the page does it.
    const auto& events = data.at("ranks").at(r).at("events");
    REQUIRE(events.size() == 5 * all[r].events.size());
    std::int64_t time = 0;
    for (std::size_t i = 0; i < all[r].events.size(); ++i) {
      const traces::Event& event = all[r].events[i];
      time += events.at(5 * i + 3).get<std::int64_t>();
      CHECK(static_cast<double>(time) / 1e3 == doctest::Approx(event.begin));
      CHECK(data.at("kinds").at(events.at(5 * i + 1).get<std::size_t>()) == event.category);
      CHECK(data.at("names").at(events.at(5 * i + 2).get<std::size_t>()) == event.name);
    }
  }
  // What the tables of a step show.
  for (std::size_t k = 0; k < steps.size(); ++k)
    for (std::size_t r = 0; r < 3; ++r) {
      CAPTURE(k);
      CAPTURE(r);
      const auto& shown = data.at("steps").at(k).at("ranks").at(r);
      const traces::RankFigures f = traces::figures_of(all, {steps[k]}).at(r);
      CHECK(shown.at("time") == f.time);
      CHECK(shown.at("exposed") == f.exposed);
      CHECK(shown.at("in_flight") == f.in_flight);
      CHECK(shown.at("forward") == f.forward);
      CHECK(shown.at("backward") == f.backward);
      CHECK(shown.at("optimizer") == f.optimizer);
      for (std::size_t other = 0; other < 3; ++other) {
        const auto waited = f.waits.find(static_cast<int>(other));
        CHECK(shown.at("waits").at(other) == (waited == f.waits.end() ? 0 : waited->second));
      }
      const std::vector<traces::BucketTimes>& buckets = steps[k].ranks[r].buckets;
      REQUIRE(shown.at("buckets").size() == buckets.size());
      for (std::size_t b = 0; b < buckets.size(); ++b)
        CHECK(shown.at("buckets").at(b).dump() ==  // a time that is not traced is null
              nlohmann::json({buckets[b].name, buckets[b].bytes, buckets[b].ready,
                              buckets[b].launched, buckets[b].begun, buckets[b].arrived})
                  .dump());
    }
}

TEST_CASE("report: names cannot break out of the page; what is no trace is refused") {
  using traces::Event;
  const std::string hostile = "</script><script>alert('\xc3\xa9\xff')</script>";
  traces::RankTrace trace;
  const nlohmann::json none = nlohmann::json::object();
  for (const double begin : {0.0, 100.0, 200.0}) {
    trace.events.push_back({begin, begin, "verdict", "commit", 1, none});
    trace.events.push_back({begin + 10, begin + 20, "backward", hostile, 1, none});
  }
  const std::string page = traces::page({trace});
  CHECK_FALSE(contains(page,
                       "alert"
                       "('"
                       "\xc3"));
  CHECK(test::count(page, "</script>") == 2);
  const auto data = nlohmann::json::parse(
      between(page, R"(<script id="data" type="application/json">)", "</script>"));
  CHECK(contains(data.at("names").at(1).get<std::string>(), "</script><script>alert"));

  const TemporaryFolder folder;
  for (const char* path : {"none", ""}) {
    const Ended ended = test::run({LOCKSTEP_BIN_DIR "/lockstep_report", folder / path});
    CHECK(ended.code == 1);
    CHECK(test::count(ended.err, "\n") == 1);
    CHECK(contains(ended.err, "cannot read"));
  }
  CHECK_THROWS_AS(traces::page({traces::RankTrace{}}), DataError);
}

TEST_CASE("report: it does not overwrite what it reads") {
  const TemporaryFolder folder;
  train_traced(folder, "1");
  const std::string before = text_of(folder / "t/rank-0.json");
  const Ended ended = test::run(
      {LOCKSTEP_BIN_DIR "/lockstep_report", folder / "t", "--out", folder / "t/rank-0.json"});
  CHECK(ended.code == 2);
  CHECK(contains(ended.err, "is a trace of"));
  CHECK(text_of(folder / "t/rank-0.json") == before);
}

TEST_CASE("report: in a browser, curves of any range") {
  const std::string chromium = browser();
  if (chromium.empty()) {
    MESSAGE("skipped: there is no Chromium");
    return;
  }
  constexpr double largest = 1.7e308;
  constexpr std::int64_t late = std::int64_t{1} << 60;
  const double up = std::nextafter(0.3, 1);
  const std::vector<std::pair<std::vector<std::int64_t>, std::vector<double>>> curves = {
      {{1, 2, 3}, {0.3, up, 0.3}},
      {{1, 2, 3}, {-0.3, -up, -0.3}},
      {{1, 2, 3}, {0, 5e-324, 0}},
      {{1, 2}, {largest, -largest}},
      {{late, late + 256}, {1, 2}},
      {{1, 2}, {std::nan(""), std::nan("")}},
      {{1, 2}, {9007199254740992.0, 9007199254740994.0}},
      {{7}, {0}}};
  for (const auto& [at, values] : curves) {
    CAPTURE(values.front());
    const TemporaryFolder folder;
    std::ofstream(folder / "page.html") << traces::page({with_curve(at, values)});
    const auto result = selftest_of(chromium, folder, folder / "page.html");
    CHECK(result.at("training").at("hidden") == false);
  }
}

TEST_CASE("report: in a browser, where there is one") {
  const std::string chromium = browser();
  if (chromium.empty()) {
    MESSAGE("skipped: there is no Chromium");
    return;
  }
  const TemporaryFolder folder;
  train_traced(folder, "3");
  const nlohmann::json result = selftest_of_page(chromium, folder);
  const auto all = traces::read_traces(folder / "t");
  const auto steps = traces::steps_of(all);
  const auto shown = result.at("step").get<std::size_t>();
  CHECK(result.at("median") == fmt::format("{} of {}: commit", shown + 1, steps.size()));
  CHECK(contains(result.at("next").get<std::string>(), fmt::format("{} of ", shown + 2)));
  std::size_t slowest = 0;
  const auto length = [&](std::size_t k) {
    return steps[k].ranks[0].end - steps[k].ranks[0].begin;
  };
  for (std::size_t k = 0; k < steps.size(); ++k)
    if (length(k) > length(slowest)) slowest = k;
  CHECK(contains(result.at("slowest").get<std::string>(), fmt::format("{} of ", slowest + 1)));
  const auto figures = traces::figures_of(all, steps);
  for (std::size_t r = 0; r < 3; ++r)
    CHECK(result.at("figures").at(r).at("exposed").get<double>() ==
          doctest::Approx(figures[r].exposed));
  const double ideal = traces::ideal_exposed(steps[shown], traces::bucket_costs(steps));
  CHECK(contains(result.at("stepText").get<std::string>(), fmt::format("leave {:.1f} us", ideal)));
  check_buckets(result.at("buckets"), steps[shown]);
  CHECK(result.at("ringEvents") == 3 * 4);  // a ring of three: 4 steps on each rank
  CHECK(contains(result.at("ringBegin").get<std::string>(), "each of the 3 ranks takes 4 steps."));
  CHECK(result.at("ringComplete") == true);
  for (const auto& view :
       result.at("views")) {  // no slice that is wide enough to be seen is missing
    CHECK(view.at(0) == view.at(1));
    CHECK(view.at(0) > 0);
  }
  CHECK(result.at("zoomed").at(1).get<double>() < result.at("all").at(1).get<double>());
  check_curves(result.at("training"), all[0], steps);

  REQUIRE(test::run({"sed", "-i", "/\"ph\":\"C\"/d", folder / "t/rank-0.json"}).code == 0);
  CHECK(selftest_of_page(chromium, folder).at("training").at("hidden") == true);
}
