// The samples: what they print and write against the published figures, and what they refuse.

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "sample.h"
#include "support/device.h"
#include "support/program.h"
#include "support/temporary_folder.h"

using namespace lockstep;
using lockstep::test::Ended;
using lockstep::test::TemporaryFolder;
using nlohmann::json;

namespace samples {
namespace {

namespace fs = std::filesystem;

/// A file with this text.
std::string fixture_in(const TemporaryFolder& folder, const std::string& text) {
  std::ofstream(folder / "fixture.json") << text;
  return folder / "fixture.json";
}

/// The summary of a run that must succeed.
json summary(const std::string& name, std::vector<std::string> options) {
  const TemporaryFolder folder;
  options.insert(options.end(), {"--json", folder / "summary.json"});
  const Ended ended = test::run(test::sample_command(name, options));
  INFO(name, ": ", ended.err);
  REQUIRE(ended.code == 0);
  CHECK(ended.err == "");
  return json::parse(std::ifstream(folder / "summary.json"));
}

json fixture(const std::string& name) {
  return json::parse(std::ifstream(LOCKSTEP_SOURCE_DIR "/samples/data/fixtures/" + name + ".json"));
}

void expect_error(const std::string& name, const std::vector<std::string>& options, int code,
                  const std::string& says) {
  const Ended ended = test::run(test::sample_command(name, options));
  INFO(ended.err, " (expected: ", says, ")");
  CHECK(ended.code == code);
  CHECK(test::lines_of(ended.err).size() == 1);
  CHECK(test::contains(ended.err, says));
}

std::vector<double> numbers(const json& list) { return list.get<std::vector<double>>(); }

/// What is rounded to `published` has at most half a unit of its last digit more or less.
void check_rounds_to(double actual, double published, int decimals) {
  CHECK(std::abs(actual - published) <= 0.5 * std::pow(10, -decimals) + 1e-9);
}

/// Linear(3, 2), three ranks, two steps: different numbers everywhere, and no published figures.
json small_bypass() {
  int k = 0;
  const auto list = [&](int count) {
    std::vector<double> values;
    for (int i = 0; i < count; ++i) values.push_back(std::round(1e4 * std::sin(++k)) / 1e4);
    return values;
  };
  json result = {{"lr", 0.25}, {"weight_shape", {2, 3}}, {"x_shape", {4, 3}}, {"y_shape", {4, 2}}};
  result["weight"] = list(6);
  result["bias"] = list(2);
  for (int step = 0; step < 2; ++step) {
    for (int rank = 0; rank < 3; ++rank) result["x"][step].push_back(list(12));
    result["y"].push_back(list(8));
  }
  return result;
}

/// The course of ddp_bypass in naive f64: [step] -> gradients of weight[0][0] and the difference.
struct Course {
  std::vector<std::vector<double>> grad00;
  std::vector<double> difference;
};

Course naive_course(const json& f, bool synced) {
  constexpr int ranks = 3, in = 3, out = 2, rows = 4;
  std::vector<std::vector<double>> models;  // weight, then bias
  for (int rank = 0; rank < ranks; ++rank) {
    models.push_back(numbers(f["weight"]));
    for (const double b : numbers(f["bias"])) models.back().push_back(b);
  }
  Course course;
  for (int step = 0; step < 2; ++step) {
    const auto y = numbers(f["y"][step]);
    std::vector<std::vector<double>> gradients;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto x = numbers(f["x"][step][rank]);
      const auto& model = models[rank];
      std::vector<double> gradient(out * in + out);
      for (int row = 0; row < rows; ++row)
        for (int o = 0; o < out; ++o) {
          double error = model[out * in + o] - y[row * out + o];
          for (int i = 0; i < in; ++i) error += model[o * in + i] * x[row * in + i];
          error *= 2.0 / (rows * out);
          for (int i = 0; i < in; ++i) gradient[o * in + i] += error * x[row * in + i];
          gradient[out * in + o] += error;
        }
      gradients.push_back(gradient);
    }
    if (synced) {
      std::vector<double> mean(gradients[0].size());
      for (const auto& gradient : gradients)
        for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += gradient[i] / ranks;
      gradients.assign(ranks, mean);
    }
    course.grad00.emplace_back();
    double difference = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      course.grad00.back().push_back(gradients[rank][0]);
      for (std::size_t i = 0; i < gradients[rank].size(); ++i)
        models[rank][i] -= 0.25 * gradients[rank][i];
      for (int i = 0; i < out * in; ++i)
        difference = std::max(difference, std::abs(models[rank][i] - models[0][i]));
    }
    course.difference.push_back(difference);
  }
  return course;
}

const std::vector<std::vector<std::string>> local_shards = {
    {}, {"--transport", "tcp"}, {"--transport", "threads"}, {"--comm", "ring", "--ranks", "2"}};

}  // namespace

TEST_CASE("ddp_bypass: the published figures, whatever carries the gradients" *
          doctest::test_suite("slow")) {
  const json published = fixture("ddp_bypass");
  for (const auto& options : local_shards) {
    const json result = summary("ddp_bypass", options);
    const auto unsynced = published["expected_unsynced"], synced = published["expected_synced"];
    REQUIRE(result["unsynced"]["grad00"].size() == 5);
    REQUIRE(result.size() == 3);
    for (int step = 0; step < 5; ++step) {
      const auto drifting = numbers(result["unsynced"]["grad00"][step]);
      REQUIRE(drifting.size() == 2);
      check_rounds_to(drifting[0], unsynced["grad00_rank0"][step], 5);
      check_rounds_to(drifting[1], unsynced["grad00_rank1"][step], 5);
      check_rounds_to(result["unsynced"]["max_weight_difference"][step],
                      unsynced["max_weight_difference"][step], 6);
      for (const double gradient : numbers(result["synced"]["grad00"][step]))
        check_rounds_to(gradient, synced["grad00"][step], 5);
      CHECK(result["synced"]["max_weight_difference"][step] == 0.0);
    }
    CHECK(result["inner_module"] == result["synced"]);
  }
}

TEST_CASE("ddp_bypass: what is printed has the published digits, and ends with the verdict") {
  const Ended ended = test::run(test::sample_command("ddp_bypass", {}));
  REQUIRE(ended.code == 0);
  for (const char* figure : {"-0.13683  -0.05685", "0.132573", "-0.34623  -0.34623"})
    CHECK(test::contains(ended.out, figure));
  CHECK(test::lines_of(ended.out).back() ==
        "synced and inner module: no drift. All 45 figures agree with those published.");
}

TEST_CASE("accumulate_vs_ddp: the published norms, whatever carries the gradients" *
          doctest::test_suite("slow")) {
  const json published = fixture("accumulate_vs_ddp")["expected_grad_norms"];
  for (auto options : local_shards) {
    if (options.size() == 4) options[3] = "4";
    const json result = summary("accumulate_vs_ddp", options);
    REQUIRE(result["ranks"].size() == 4);
    std::vector<json> all = result["ranks"];
    all.push_back(result["accumulated"]);
    for (const json& norms : all) {
      CHECK(norms.size() == 4);
      for (const auto& [name, norm] : published.items()) check_rounds_to(norms[name], norm, 4);
    }
  }
}

TEST_CASE("ddp_concepts: PyTorch's shards, and the sums") {
  const json result = summary("ddp_concepts", {});
  // torch.utils.data.DistributedSampler over 20 samples, 4 replicas, seed 0, epoch 0.
  CHECK(result["shards"] ==
        json({{4, 7, 9, 16, 15}, {5, 14, 17, 18, 8}, {13, 3, 11, 10, 1}, {19, 6, 2, 12, 0}}));
  CHECK(result["all_reduce"].size() == 7);
  for (const json& of_rank : result["all_reduce"].back())
    CHECK(of_rank == json({1111, 2222, 3333, 4444}));
  CHECK(result["digests"]["after step 3"].size() == 4);
}

TEST_CASE("ddp_bypass: any number of ranks, steps and sizes") {
  const TemporaryFolder folder;
  const json small = small_bypass();
  const std::string path = fixture_in(folder, small.dump());
  for (const char* transport : {"shm", "threads"}) {
    const json result = summary("ddp_bypass", {"--fixture", path, "--transport", transport});
    for (const bool synced : {false, true}) {
      const Course expected = naive_course(small, synced);
      const json& actual = result[synced ? "inner_module" : "unsynced"];
      for (std::size_t step = 0; step < 2; ++step) {
        const auto gradients = numbers(actual["grad00"][step]);
        REQUIRE(gradients.size() == 3);
        for (std::size_t rank = 0; rank < 3; ++rank)
          CHECK(gradients[rank] == doctest::Approx(expected.grad00[step][rank]).epsilon(1e-5));
        CHECK(actual["max_weight_difference"][step].get<double>() ==
              doctest::Approx(expected.difference[step]).epsilon(1e-5));
      }
    }
  }
}

TEST_CASE("accumulate_vs_ddp: one sample, and labels of another shape") {
  const TemporaryFolder folder;
  json one = fixture("accumulate_vs_ddp");
  one.erase("expected_grad_norms");
  one["pixels_shape"] = {1, 4};
  one["pixels"] = {0.5, -1, 2, 0.25};
  one["labels_shape"] = {1, 5};
  one["labels"] = {0, 1, 2, 5, 5};
  const json result = summary("accumulate_vs_ddp", {"--fixture", fixture_in(folder, one.dump())});
  REQUIRE(result["ranks"].size() == 1);
  for (const auto& [name, norm] : result["accumulated"].items())
    CHECK(norm.get<double>() == doctest::Approx(result["ranks"][0][name].get<double>()));
}

TEST_CASE("a figure that is not the published one is named, and the exit code is 1" *
          doctest::test_suite("slow")) {
  const TemporaryFolder folder;
  json bypass = fixture("ddp_bypass");
  bypass["expected_unsynced"]["grad00_rank1"][3] = -0.01722;
  for (const char* transport : {"shm", "tcp", "threads"})
    expect_error("ddp_bypass",
                 {"--fixture", fixture_in(folder, bypass.dump()), "--transport", transport}, 1,
                 "unsynced, gradient at step 3 of rank 1: -0.01721 here, -0.01722 published");
  bypass = fixture("ddp_bypass");
  bypass["expected_synced"]["max_weight_difference"][4] = 0.000001;
  expect_error("ddp_bypass", {"--fixture", fixture_in(folder, bypass.dump())}, 1,
               "synced, weight difference after step 4: 0.000000 here, 0.000001 published");
  json accumulate = fixture("accumulate_vs_ddp");
  accumulate["expected_grad_norms"]["decoder.weight"] = 0.2205;
  expect_error("accumulate_vs_ddp", {"--fixture", fixture_in(folder, accumulate.dump())}, 1,
               "accumulated, norm of decoder.weight: 0.2206 here, 0.2205 published");
}

TEST_CASE("a fixture that makes no sense gets one line with the place" *
          doctest::test_suite("slow")) {
  const TemporaryFolder folder;
  const auto refuse = [&](const std::string& name, const json& changed, const std::string& says) {
    expect_error(name, {"--fixture", fixture_in(folder, changed.dump())}, 1, says);
  };
  for (const char* name : {"ddp_bypass", "accumulate_vs_ddp"}) {
    expect_error(name, {"--fixture", folder / "none.json"}, 1, "none.json' cannot be read");
    expect_error(name, {"--fixture", fixture_in(folder, "{\"x\": [1, 2")}, 1, "is not JSON");
    expect_error(name, {"--fixture", fixture_in(folder, "[1, 2]")}, 1, "is missing");
  }
  const json bypass = fixture("ddp_bypass"), accumulate = fixture("accumulate_vs_ddp");
  json bad = bypass;
  bad.erase("lr");
  refuse("ddp_bypass", bad, "lr is missing");
  bad = bypass;
  bad["x"][2][1].erase(0);
  refuse("ddp_bypass", bad, "x[2][1] has 15 numbers, not the 16 of shape (4, 4)");
  bad = bypass;
  bad["x"][3].erase(0);
  refuse("ddp_bypass", bad, "x[3] is for 1 ranks, x[0] for 2");
  bad = bypass;
  bad["y"].erase(0);
  refuse("ddp_bypass", bad, "y has 4 entries, where 5 are needed");
  bad = bypass;
  bad["weight"][5] = "0.5";
  refuse("ddp_bypass", bad, "weight[5] is not a number");
  bad = bypass;
  bad["weight_shape"] = {4, -4};
  refuse("ddp_bypass", bad, "weight_shape holds -4, which is no size");
  bad = bypass;
  bad["weight_shape"] = {2, 8};
  refuse("ddp_bypass", bad, "do not fit");
  bad = bypass;
  bad["expected_synced"]["grad00"].erase(0);
  refuse("ddp_bypass", bad, "expected_synced.grad00 has 4 figures, there are 5 steps");
  bad = accumulate;
  bad["labels"][7] = 6;
  refuse("accumulate_vs_ddp", bad, "labels holds 6, which is none of the 6 classes");
  bad = accumulate;
  bad["labels_shape"] = {3, 4, 4};
  refuse("accumulate_vs_ddp", bad, "labels_shape is (3, 4, 4), but there are 4 samples");
  bad = accumulate;
  bad["expected_grad_norms"].erase("encoder.bias");
  refuse("accumulate_vs_ddp", bad, "expected_grad_norms.encoder.bias is missing");
}

TEST_CASE("samples: in a launcher's world they join, and refuse another number of ranks") {
  const auto launched = [](const char* ranks, const std::string& name,
                           const std::vector<std::string>& options = {}) {
    std::vector<std::string> all = {LOCKSTEP_BIN_DIR "/lockstep-run", "-n", ranks};
    for (const std::string& word : test::sample_command(name, options)) all.push_back(word);
    return test::run(all);
  };
  const Ended joined = launched("2", "ddp_bypass");
  CHECK(joined.code == 0);
  CHECK(test::count(joined.out, "no drift") == 1);
  CHECK(launched("4", "accumulate_vs_ddp", {"--ranks", "4"}).code == 0);
  const Ended refused = launched("3", "ddp_bypass");
  CHECK(refused.code == 2);
  CHECK(test::contains(refused.err, "the fixture is for 2 ranks, in a world of 3"));
  expect_error("ddp_bypass", {"--ranks", "3"}, 2, "--ranks 3, but the fixture is for 2");
  expect_error("ddp_bypass", {"--ranks", "0"}, 2, "--ranks must be in 1..");
  expect_error("accumulate_vs_ddp", {"--json", "/nowhere/x.json"}, 2, "/nowhere");
  expect_error("ddp_concepts", {"--json", "/nowhere/x.json"}, 2, "/nowhere");
  expect_error("ddp_concepts", {"--nonsense"}, 2, "--nonsense");
}

}  // namespace samples
