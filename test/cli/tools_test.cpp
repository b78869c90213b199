// The tools: train --trace and `lockstep trace`, the sample overlap, `lockstep doctor`, `lockstep
// scaling`.

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>

#include "lockstep/dist/rendezvous/endpoint.h"
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

TEST_CASE("doctor: a rank whose messages are delayed has slow links") {
  const TemporaryFolder folder;
  const std::string address =
      fmt::format("export WORLD_SIZE=3 LOCAL_WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT={};",
                  dist::local_port(dist::reserve_port("127.0.0.1").get()));
  const std::string rank = fmt::format("'{}/lockstep_doctor' --transport tcp --folder '{}'",
                                       LOCKSTEP_BIN_DIR, folder.path().string());
  const Ended ended =
      test::run({"/bin/sh", "-c",
                 fmt::format("{0} RANK=1 LOCAL_RANK=1 {1} >/dev/null 2>&1 & "
                             "LD_PRELOAD='{2}' RANK=2 LOCAL_RANK=2 {1} >/dev/null 2>&1 & "
                             "RANK=0 LOCAL_RANK=0 {1} --json '{3}'; code=$?; wait; exit $code",
                             address, rank, LOCKSTEP_SLOW_LINK, folder / "json")});
  INFO(ended.out, ended.err);
  CHECK(ended.code == 1);
  CHECK(test::count(ended.out, "PROBLEM") == 1);
  for (const auto& finding : nlohmann::json::parse(std::ifstream(folder / "json"))) {
    CHECK(finding.at("good") == (finding.at("check") != "links"));
    if (finding.at("check") != "links") continue;
    const std::string found = finding.at("found");
    CHECK(contains(found, "ranks 0 and 2: "));
    CHECK(contains(found, "ranks 1 and 2: "));
    CHECK_FALSE(contains(found, "ranks 0 and 1: "));
    CHECK(contains(std::string(finding.at("advice")), "slowest link"));
  }
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
