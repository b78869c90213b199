// The tools: train --trace, `lockstep trace` and `lockstep report`, the sample overlap, `lockstep
// doctor`.

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>

#include "lockstep/dist/rendezvous/endpoint.h"
#include "lockstep/tools/report/page.h"
#include "lockstep/tools/trace/steps.h"
#include "sample.h"
#include "support/program.h"
#include "support/temporary_folder.h"

using namespace lockstep;
using lockstep::test::contains;
using lockstep::test::Ended;
using lockstep::test::TemporaryFolder;

namespace {

using Words = std::vector<std::string>;

Ended trace(Words words) {
  words.insert(words.begin(), LOCKSTEP_BIN_DIR "/lockstep_trace");
  return test::run(words);
}

/// What does not depend on time.
std::string masked(const std::string& text) {
  return std::regex_replace(text, std::regex(R"([0-9]+(\.[0-9]+)?)"), "#");
}

Ended run_doctor(const std::string& before, const std::string& options = "") {
  return test::run(
      {"/bin/sh", "-c",
       fmt::format("{} exec '{}/lockstep_doctor' {}", before, LOCKSTEP_BIN_DIR, options)});
}

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
  for (const auto& [key, k] :
       {std::pair("Home", std::size_t{0}), std::pair("ArrowRight", std::size_t{4}),
        std::pair("ArrowLeft", std::size_t{3}), std::pair("End", losses.size() - 1)}) {
    const std::string text = shown.at(key);
    CAPTURE(text);
    CHECK(contains(text, fmt::format("Step {}, at {:.3f} s: train/loss ", losses[k].step,
                                     losses[k].time / 1e6)) == (std::string(key) != "End"));
    check_shown(between(text, "train/loss ", ","), losses[k].number);
  }
  CHECK(contains(shown.at("End").get<std::string>(), ", epoch/loss "));
  CHECK(training.at("chosen") == steps.size() - 1);
  CHECK(training.at("columns") > training.at("width").get<int>() / 2);
}

std::string browser() {
  for (const char* name : {"chromium", "chromium-browser", "google-chrome"})
    if (const Ended found = test::run({"/bin/sh", "-c", std::string("command -v ") + name});
        found.code == 0)
      return found.out.substr(0, found.out.find('\n'));
  return "";
}

}  // namespace

TEST_CASE("trace: train --trace, and what lockstep trace says of it") {
  const TemporaryFolder folder;
  const Words options = {"--trace",         folder / "t", "--epochs", "1",
                         "--bucket-cap-mb", "0.03",       "--ranks",  "3"};
  const Ended trained = test::run(test::sample_command("train_mlp", options));
  INFO(trained.err);
  REQUIRE(trained.code == 0);
  for (int rank = 0; rank < 3; ++rank) {
    const auto file =
        nlohmann::json::parse(std::ifstream(fmt::format("{}/rank-{}.json", folder / "t", rank)));
    CHECK(file.at("otherData").at("world") == 3);
    CHECK(file.at("otherData").at("dropped") == 0);
  }
  const Ended said = trace({folder / "t"});
  CHECK(said.code == 0);
  CHECK(said.err == "");
  CHECK(test::contains(said.out, "3 ranks, "));
  CHECK(test::contains(said.out, "rank 2 "));
  CHECK(test::contains(said.out, "bucket 0 "));
  CHECK(test::contains(said.out, " us exposed (median)."));
  CHECK(trace({folder / "t", "--summary"}).out == said.out);
  const Ended drawn = trace({folder / "t", "--step", "0", "--width", "80"});
  CHECK(drawn.code == 0);
  CHECK(test::count(drawn.out, "\nrank ") == 3);
  for (std::size_t begin = 0, end; (end = drawn.out.find('\n', begin)) != std::string::npos;
       begin = end + 1)
    CHECK(end - begin <= 100);

  REQUIRE(trace({folder / "t", "--merge", folder / "all.json"}).code == 0);
  std::size_t apart = 0;
  for (int rank = 0; rank < 3; ++rank)
    apart +=
        nlohmann::json::parse(std::ifstream(fmt::format("{}/rank-{}.json", folder / "t", rank)))
            .at("traceEvents")
            .size();
  const auto all = nlohmann::json::parse(std::ifstream(folder / "all.json"));
  CHECK(all.at("traceEvents").size() == apart);
}

TEST_CASE("trace: bad usage is one line") {
  const TemporaryFolder folder;
  for (const Words& words : std::vector<Words>{{},
                                               {folder / "none"},
                                               {folder / "none", "--step", "x"},
                                               {folder / "", "--width", "3"}}) {
    const Ended ended = trace(words);
    CAPTURE(ended.err);
    CHECK(ended.code != 0);
    CHECK(test::count(ended.err, "\n") == 1);
  }
  std::ofstream(folder / "file") << "here";
  const Ended ended =
      test::run(test::sample_command("train_mlp", {"--trace", folder / "file", "--epochs", "1"}));
  CHECK(ended.code != 0);
  CHECK(test::contains(ended.err, "cannot make the folder"));
}

TEST_CASE("overlap: drawn, with overlap and without, and the same model comes of it") {
  const TemporaryFolder folder;
  for (const char* ranks : {"1", "2", "3"}) {
    CAPTURE(ranks);
    const Words options = {"--ranks", ranks, "--json", folder / "json", "--trace", folder / "t"};
    const Words command = [&] {
      Words words = options;
      words.insert(words.begin(), LOCKSTEP_BIN_DIR "/overlap");
      return words;
    }();
    const Ended ended = test::run(command);
    INFO(ended.err);
    REQUIRE(ended.code == 0);  // it checks what it explains
    CHECK(test::count(ended.out, "\nrank 0      |") == 2);
    CHECK(test::count(ended.out, "\n  bucket 5  |") == 2 * std::stoi(ranks));
    CHECK(test::contains(masked(ended.out), "# us exposed.\n\nWhat you see"));
    for (const char* file : {"dist/ddp/reducer.cpp"}) {
      CHECK(test::contains(ended.out, file));
      CHECK(std::filesystem::exists(std::string(LOCKSTEP_SOURCE_DIR "/") + file));
    }
    const auto json = nlohmann::json::parse(std::ifstream(folder / "json"));
    CHECK(json.at("buckets") == 6);
    CHECK(trace({folder / "t/off"}).code == 0);
  }
  CHECK_FALSE(std::filesystem::exists(folder / "lockstep-overlap"));
}

TEST_CASE("doctor: through the front door") {
  const TemporaryFolder folder;
  const std::string quiet = fmt::format("--folder '{}'", folder.path().string());
  const Ended well =
      run_doctor("", quiet + " --ranks 2 --gradients-mb 1 --json '" + (folder / "json") + "'");
  INFO(well.out, well.err);
  CHECK(well.code == 0);
  CHECK(test::count(well.out, "ok      ") == 9);
  CHECK(contains(well.out, "Nothing is wrong.\n"));
  const auto json = nlohmann::json::parse(std::ifstream(folder / "json"));
  CHECK(json.size() == 9);
  for (const auto& finding : json) CHECK(finding.at("good") == true);

  const Ended few = run_doctor("ulimit -n 40;", quiet);
  CHECK(few.code == 1);
  CHECK(contains(few.out, "PROBLEM descriptors: 40 may be open"));
  CHECK(contains(few.out, "ulimit -n 66"));
  CHECK(few.err == "");

  // By hand: a rank that nobody starts, and one that is started twice.
  const std::string by_hand =
      fmt::format("export WORLD_SIZE=3 LOCAL_WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT={};",
                  dist::local_port(dist::reserve_port("127.0.0.1").get()));
  const std::string rank =
      fmt::format("'{}/lockstep_doctor' --timeout 3 {}", LOCKSTEP_BIN_DIR, quiet);
  const Ended missing = test::run(
      {"/bin/sh", "-c",
       fmt::format("{0} RANK=1 LOCAL_RANK=1 {1} >/dev/null 2>&1 & {0} RANK=0 LOCAL_RANK=0 {1}; "
                   "code=$?; wait; exit $code",
                   by_hand, rank)});
  CHECK(missing.code == 1);
  CHECK(contains(missing.out, "PROBLEM joining: "));
  CHECK(contains(missing.out, "rank 2 is missing"));
  CHECK(contains(missing.out, "is WORLD_SIZE the number of processes"));
  const Ended twice = test::run(
      {"/bin/sh", "-c",
       fmt::format("{0} for i in 1 1; do RANK=1 LOCAL_RANK=1 {1} & done; RANK=0 LOCAL_RANK=0 {1}; "
                   "code=$?; wait; exit $code",
                   by_hand, rank)});
  CHECK(twice.code == 1);
  CHECK(contains(twice.out, "rank 1 has joined twice"));
  CHECK(contains(twice.out, "give each its own"));
}

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
  for (std::size_t r = 0; r < 3; ++r) {
    const traces::RankFigures f = traces::figures_of(all[r]);
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

TEST_CASE("report: in a browser, where there is one") {
  const std::string chromium = browser();
  if (chromium.empty()) {
    MESSAGE("no Chromium is installed: the page is not opened");
    return;
  }
  const TemporaryFolder folder;
  train_traced(folder, "3");
  REQUIRE(test::run({LOCKSTEP_BIN_DIR "/lockstep_report", folder / "t"}).code == 0);
  const Ended ended =
      test::run({chromium, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
                 "--user-data-dir=" + (folder / "profile"), "--virtual-time-budget=5000",
                 "--dump-dom", "file://" + (folder / "t/report.html") + "#selftest"});
  INFO(ended.err);
  CHECK_FALSE(contains(ended.err, "CONSOLE"));
  const std::string found = between(ended.out, R"(<pre id="selftest">)", "</pre>");
  REQUIRE(found != "");
  const auto result = nlohmann::json::parse(found);
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
  for (std::size_t r = 0; r < 3; ++r)
    CHECK(result.at("figures").at(r).at("exposed").get<double>() ==
          doctest::Approx(traces::figures_of(all[r]).exposed));
  const double ideal = traces::ideal_exposed(steps[shown], traces::bucket_costs(steps));
  CHECK(contains(result.at("stepText").get<std::string>(), fmt::format("leave {:.1f} us", ideal)));
  CHECK(result.at("bucketRows") == 3 * steps[shown].ranks[0].buckets.size());
  CHECK(result.at("ringEvents") == 3 * 4);  // a ring of three: 4 steps on each rank
  CHECK(result.at("ringComplete") == true);
  for (const auto& view :
       result.at("views")) {  // no slice that is wide enough to be seen is missing
    CHECK(view.at(0) == view.at(1));
    CHECK(view.at(0) > 0);
  }
  CHECK(result.at("zoomed").at(1).get<double>() < result.at("all").at(1).get<double>());
  check_curves(result.at("training"), all[0], steps);
}

TEST_CASE("scaling: a row per number of ranks, and figures that fit each other") {
  const TemporaryFolder folder;
  const Words command = {LOCKSTEP_BIN_DIR "/lockstep_scaling",
                         "--layers",
                         "8,6,4",
                         "--ranks",
                         "3",
                         "--batch",
                         "2",
                         "--round",
                         "0.01",
                         "--json",
                         folder / "json"};
  const Ended ended = test::run(command);
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  const auto json = nlohmann::json::parse(std::ifstream(folder / "json"));
  REQUIRE(json.at("per_rank").size() == 3);
  REQUIRE(json.at("of_all_ranks").size() == 3);  // 6 samples: 6, 3 and 2 on each rank
  for (const char* kind : {"per_rank", "of_all_ranks"}) {
    const auto& rows = json.at(kind);
    for (std::size_t k = 0; k < 3; ++k) {
      const double ranks = static_cast<double>(k + 1);
      const double rate = rows.at(k).at("samples_per_second");
      CHECK(rows.at(k).at("ranks") == k + 1);
      CHECK(rows.at(k).at("batch") == (kind == std::string("per_rank") ? 2 : 6 / (k + 1)));
      CHECK(rate == doctest::Approx(1e6 * ranks * rows.at(k).at("batch").get<double>() /
                                    rows.at(k).at("step_us").get<double>()));
      CHECK(rows.at(k).at("efficiency").get<double>() ==
            doctest::Approx(rate / ranks / rows.at(0).at("samples_per_second").get<double>()));
      CHECK(rows.at(k).at("exposed_us") <= rows.at(k).at("step_us"));
    }
  }
  CHECK(test::count(ended.out, "efficiency") == 2);
  const Ended refused = test::run({LOCKSTEP_BIN_DIR "/lockstep_scaling", "--layers", "8"});
  CHECK(refused.code == 2);
  CHECK(test::count(refused.err, "\n") == 1);
  const Ended failed =
      test::run({LOCKSTEP_BIN_DIR "/lockstep_scaling", "--layers", "8,4", "--comm", "none"});
  CHECK(failed.code == 1);
  CHECK(contains(failed.err, "--comm"));
}
