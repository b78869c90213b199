// The samples that start any number of ranks: their claims, read from their summaries.

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "sample.h"
#include "support/device.h"
#include "support/expect.h"
#include "support/program.h"

using namespace lockstep;
using lockstep::test::Ended;
using nlohmann::json;

namespace {

namespace fs = std::filesystem;

/// The summary of a run that must succeed.
json summary(const std::string& name, std::vector<std::string> options) {
  static int made = 0;
  const fs::path path =
      fs::temp_directory_path() / fmt::format("lockstep-sample-{}-{}.json", ::getpid(), made++);
  options.insert(options.end(), {"--json", path.string()});
  const Ended ended = test::run(test::sample_command(name, options));
  INFO(name, " ", fmt::format("{}", fmt::join(options, " ")), ": ", ended.err);
  REQUIRE(ended.code == 0);
  CHECK(ended.err == "");
  json result = json::parse(std::ifstream(path));
  fs::remove(path);
  return result;
}

/// By shared memory and on threads, two and three ranks: check(summary, ranks).
template <class F>
void for_all_worlds(const std::string& name, const std::vector<std::string>& options, F check) {
  for (const char* transport : {"shm", "threads"})
    for (const int ranks : {2, 3}) {
      CAPTURE(transport);
      CAPTURE(ranks);
      std::vector<std::string> all = options;
      all.insert(all.end(), {"--transport", transport, "--ranks", std::to_string(ranks)});
      check(summary(name, all), static_cast<std::size_t>(ranks));
    }
}

std::set<std::string> strings(const json& list) { return list.get<std::set<std::string>>(); }

void expect_usage_error(const std::string& name, const std::vector<std::string>& options,
                        const std::string& says) {
  const Ended ended = test::run(test::sample_command(name, options));
  INFO(ended.err, " (expected: ", says, ")");
  CHECK(ended.code == 2);
  CHECK(test::lines_of(ended.err).size() == 1);
  CHECK(test::contains(ended.err, says));
}

}  // namespace

TEST_CASE("stragglers: no gradient is lost, whoever is slow" * doctest::test_suite("slow")) {
  for_all_worlds("stragglers", {"--steps", "9", "--batch", "8", "--hidden", "16"},
                 [](const json& result, std::size_t ranks) {
                   for (const char* run : {"all_alike", "one_slow"})
                     for (const char* list : {"compute_ms", "wait_ms", "digests"})
                       CHECK(result[run][list].size() == ranks);
                   for (const auto& ms : result["one_slow"]["compute_ms"])
                     CHECK(ms.get<double>() > 0);
                   CHECK(strings(result["one_slow"]["digests"]).size() == 1);
                   CHECK(result["one_slow"]["digests"] == result["all_alike"]["digests"]);
                   CHECK(result["slow_rank"] == ranks - 1);
                   CHECK(result["slowest"].get<std::size_t>() < ranks);

                   const json& rows = result["synchronized"];
                   REQUIRE(rows.size() == 6);
                   std::set<std::string> different;
                   const std::vector<int> every = {0, 1, 2, 4, 8, 16};
                   for (std::size_t k = 0; k < rows.size(); ++k) {
                     CHECK(rows[k]["every"] == every[k]);
                     CHECK(strings(rows[k]["digests"]).size() == 1);
                     different.insert(rows[k]["digests"][0]);
                     CHECK((rows[k]["drift"].get<double>() > 0) == (k > 0));
                     CHECK(rows[k]["accuracy"].get<double>() <= 1);
                   }
                   CHECK(rows[0]["digests"] == result["all_alike"]["digests"]);
                   CHECK(different.size() >= 5);  // averaging at other steps leads elsewhere
                   // The average of parameters after one step is the step on the average gradient.
                   CHECK(rows[1]["loss"].get<double>() ==
                         doctest::Approx(rows[0]["loss"].get<double>()).epsilon(1e-4));
                 });
}

TEST_CASE("dynamic_graph: a branch has a gradient if a rank took it, the one of one process") {
  for_all_worlds("dynamic_graph", {"--steps", "7"}, [](const json& result, std::size_t ranks) {
    REQUIRE(result["steps"].size() == 7);
    std::set<std::string> everything;
    for (const json& step : result["steps"]) {
      CHECK(step["taken"].size() == ranks);
      std::set<std::string> modules = strings(step["taken"]), expected;
      everything.insert(modules.begin(), modules.end());
      modules.erase("none");
      CHECK(modules.size() < 4);
      modules.insert({"trunk", "head"});
      for (const std::string& module : modules)
        expected.insert({module + ".weight", module + ".bias"});
      CHECK(strings(step["with_gradient"]) == expected);
      CHECK(step["difference"].get<double>() <= 1e-9);
    }
    CHECK(everything.count("none") == 1);
    CHECK(everything.size() >= 4);
  });
}

TEST_CASE("dynamic_graph: a ring, tcp, another seed, and a world of one") {
  const json first = summary("dynamic_graph", {"--comm", "ring", "--transport", "tcp"});
  const json second = summary("dynamic_graph", {"--seed", "1", "--ranks", "4"});
  CHECK(first["steps"][0]["taken"].size() == 2);
  CHECK(second["steps"][0]["taken"].size() == 4);
  CHECK(summary("dynamic_graph", {"--ranks", "1"})["steps"].size() == 12);
}

TEST_CASE("per_parameter_vs_buckets: the same parameters, however the gradients are cut") {
  const std::vector<std::string> options = {"--layers", "6",       "--steps", "2",      "--rounds",
                                            "1",        "--batch", "3",       "--comm", "direct"};
  for_all_worlds("per_parameter_vs_buckets", options, [](const json& result, std::size_t ranks) {
    const json& rows = result["buckets"];
    REQUIRE(rows.size() == 4);
    CHECK(rows[0]["collectives"] == 12);  // a weight and a bias per layer
    CHECK(rows[3]["collectives"] == 1);
    for (const json& row : rows) {
      CHECK(row["digests"].size() == ranks);
      CHECK(strings(row["digests"]).size() == 1);
      CHECK(row["digests"] == rows[0]["digests"]);
      CHECK(row["collectives"] <= rows[0]["collectives"]);
      CHECK(row["ms_per_step"].get<double>() > 0);
      // 6 layers of 64 x 64 weights and 64 biases, f32.
      CHECK(row["largest_bucket_bytes"].get<double>() * row["collectives"].get<double>() >=
            6 * (64 * 64 + 64) * 4);
    }
  });
}

TEST_CASE("per_parameter_vs_buckets: with a ring, the replicas are the same") {
  const json rows = summary("per_parameter_vs_buckets",
                            {"--layers", "3", "--steps", "2", "--rounds", "1", "--comm", "ring",
                             "--transport", "tcp", "--ranks", "3"})["buckets"];
  for (const json& row : rows) CHECK(strings(row["digests"]).size() == 1);
}

TEST_CASE("per_parameter_vs_buckets: ranks that share a core are told of") {
  std::vector<std::string> command = test::sample_command(
      "per_parameter_vs_buckets", {"--layers", "3", "--rounds", "1", "--transport", "threads"});
  command.insert(command.begin(), {"taskset", "-c", std::to_string(sched_getcpu())});
  const Ended ended = test::run(command);
  CHECK(ended.code == 0);
  CHECK(test::contains(ended.out, "A rank waited for a core for "));
}

TEST_CASE("syncbn: over ranks as on the union; per rank not") {
  for_all_worlds("syncbn", {}, [](const json& result, std::size_t) {
    CHECK(result.size() == 2);
    CHECK(result["syncbn_vs_union"].get<double>() <= 1e-6);
    CHECK(result["batchnorm_vs_union"].get<double>() > 1e-3);
  });
  // The fourth rank has no rows.
  const json four = summary("syncbn", {"--ranks", "4", "--transport", "tcp", "--seed", "3"});
  CHECK(four["syncbn_vs_union"].get<double>() <= 1e-6);
  CHECK(four["batchnorm_vs_union"].get<double>() > 1e-3);
  CHECK(summary("syncbn", {"--ranks", "1"})["batchnorm_vs_union"] == 0.0);
}

TEST_CASE("power_sgd: a hook of one's own sends less, and learns as much") {
  const Ended ended = test::run(test::sample_command("power_sgd", {}));
  test::expect(ended.code == 0 && ended.err.empty(), "{}", ended.err);
  const std::vector<std::string> lines = test::lines_of(ended.out);
  CHECK(lines[3].starts_with("none  "));
  CHECK(lines[4].starts_with("PowerSGD, rank 4  "));
  CHECK(lines.back() == "Less than a quarter of the bytes, and it learns as much.");
}

TEST_CASE("samples of any number of ranks: a headline, a verdict, and what they refuse") {
  const std::vector<std::pair<std::string, std::string>> verdicts = {
      {"dynamic_graph", "The gradients of one process on all rows, "},
      {"syncbn", "SyncBatchNorm is BatchNorm on the union, to "}};
  for (const auto& [name, verdict] : verdicts) {
    const Ended ended = test::run(test::sample_command(name, {"--transport", "threads"}));
    CHECK(ended.code == 0);
    CHECK(test::lines_of(ended.out).back().starts_with(verdict));
    for (const std::string& line : test::lines_of(ended.out)) CHECK(line.size() <= 110);
  }
  expect_usage_error("stragglers", {"--steps", "0", "--batch", "8", "--hidden", "16"},
                     "--steps 0 --batch 8 --hidden 16: all must be positive");
  expect_usage_error("dynamic_graph", {"--steps", "-1"}, "--steps must be positive, got -1");
  expect_usage_error("per_parameter_vs_buckets", {"--rounds", "0"}, "all must be positive");
  expect_usage_error("syncbn", {"--ranks", "0"}, "--ranks must be in 1..");
  expect_usage_error("syncbn", {"--json", "/nowhere/x.json"}, "/nowhere");
}

TEST_CASE("walk: PyTorch's numbers, and those that docs/ddp.md tells") {
  const json reference = json::parse(std::ifstream(LOCKSTEP_TEST_DATA "/walk.json"));
  for (const auto& [ranks, comm] : {std::pair("2", "auto"), std::pair("3", "ring")}) {
    CAPTURE(ranks);
    const json result = summary("walk", {"--ranks", ranks, "--comm", comm});
    const json& expected = reference.at(ranks);
    for (std::size_t rank = 0; rank < expected.at("own").size(); ++rank)
      CHECK(result["own"][rank].get<double>() ==
            doctest::Approx(expected["own"][rank].get<double>()).epsilon(1e-5));
    for (const char* figure : {"sum", "before", "after"})
      CHECK(result[figure].get<double>() ==
            doctest::Approx(expected[figure].get<double>()).epsilon(1e-5));
  }
  if (test::test_device() != Device{}) return;  // the page tells of processors
  const json result = summary("walk", {});
  std::ifstream page(LOCKSTEP_SOURCE_DIR "/docs/ddp.md");
  const std::string text{std::istreambuf_iterator<char>(page), {}};
  const std::size_t begin = text.find("## The walk of one gradient");
  const std::string section = text.substr(begin, text.find("\n## ", begin + 1) - begin);
  // The three fractions of the page, in its order, and its whole numbers.
  std::vector<double> told;
  for (std::size_t at = 0; (at = section.find("-0.0", at)) != section.npos; at += 4)
    told.push_back(std::strtod(section.c_str() + at, nullptr));
  REQUIRE(told.size() == 3);
  CHECK(told[0] == doctest::Approx(result["own"][0].get<double>()).epsilon(1e-5));
  CHECK(told[1] == doctest::Approx(result["own"][1].get<double>()).epsilon(1e-5));
  CHECK(told[2] == doctest::Approx(result["sum"].get<double>()).epsilon(1e-5));
  const std::string lines =
      fmt::format("{}", fmt::join(result["lines"].get<std::vector<std::string>>(), "\n"));
  CAPTURE(lines);
  for (const auto& [page_says, walk_says] :
       {std::pair("element 131,328 of bucket 0", "element 131328 of bucket 0"),
        std::pair("all-reduce, of 133,904 elements", "all-reduce is called, of 133904 elements"),
        std::pair("401,920 elements, and behind them 94 of step metadata",
                  "behind bucket 1 travel 94 numbers of step metadata"),
        std::pair("waits for 4 gradients, bucket 1 for 2", "bucket 0 for 4, bucket 1 for 2"),
        std::pair("The seed was 32 / 64", "seeded with 32 / 64"),
        std::pair("rank 1 owns", "rank 1 owns this part")}) {
    CHECK(test::contains(section, page_says));
    CHECK(test::contains(lines, walk_says));
  }
  CHECK(test::contains(section, "2,143,672 bytes per rank"));
  CHECK(result["bytes"] == 2143672);
}

TEST_CASE("break_it: what drifts, from which step on, and what is noticed") {
  for (const char* ranks : {"2", "3", "4"}) {
    CAPTURE(ranks);
    const std::string path =
        fmt::format("{}/lockstep-break-{}.json", fs::temp_directory_path().string(), ::getpid());
    const Ended ended = test::run({LOCKSTEP_BIN_DIR "/break_it", "--ranks", ranks, "--json", path});
    INFO(ended.err);
    REQUIRE(ended.code == 0);  // it checks what it explains
    const json lessons = json::parse(std::ifstream(path));
    fs::remove(path);
    CHECK(lessons.size() == 8);
    const auto drift = [&](const char* name) {
      return lessons.at(name).at("between_replicas").get<std::vector<double>>();
    };
    for (const double difference : drift("nothing is wrong")) CHECK(difference == 0);
    // Weights of Linear(3, 5) are drawn from +-1/sqrt(3): they differ by no more than twice that.
    const auto own_weights = drift("no broadcast: each rank keeps its own first weights");
    CHECK(own_weights.front() < 2 / std::sqrt(3.0));
    const auto forgotten = drift("step 2 is taken on each rank's own gradient");
    CHECK((forgotten[0] == 0 && forgotten[1] > 0 && forgotten.size() == 20));
    const json& order = lessons.at("rank 1 sums the gradients in another order");
    CHECK(test::contains(order.at("error").get<std::string>(), "'2.bias'"));
    for (const auto& [name, lesson] : lessons.items()) {
      const auto where = lesson.at("where").get<std::string>();
      CAPTURE(where);
      CHECK(fs::exists(LOCKSTEP_SOURCE_DIR "/" + where.substr(0, where.find(':'))));
      const int line = test::count(ended.out, ". " + name + "\n");
      CHECK(line == 1);
    }
  }
  for (const char* ranks : {"1", "5"})
    CHECK(test::run({LOCKSTEP_BIN_DIR "/break_it", "--ranks", ranks}).code == 2);
}
