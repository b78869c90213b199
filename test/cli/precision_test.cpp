// `train --precision`: what it learns, what it says, and what it refuses.

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/program.h"
#include "support/temporary_folder.h"

using namespace lockstep;
using lockstep::test::Ended;
using lockstep::test::TemporaryFolder;

namespace {

using Words = std::vector<std::string>;

Ended train(const std::string& precision, Words options = {}) {
  options.insert(options.begin(), {LOCKSTEP_BIN_DIR "/train_mlp", "--precision", precision});
  return test::run(options);
}

nlohmann::json summary_of(const std::string& precision, Words options = {}) {
  const TemporaryFolder folder;
  options.insert(options.end(), {"--json", folder / "json"});
  const Ended ended = train(precision, options);
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  return nlohmann::json::parse(std::ifstream(folder / "json"));
}

}  // namespace

TEST_CASE("precision: bf16 and f16 learn the digits as f32 does, five seeds") {
  std::map<std::string, double> mean;
  for (const std::string precision : {"f32", "bf16", "f16"})
    for (const char* seed : {"0", "1", "2", "3", "4"}) {
      const nlohmann::json json = summary_of(precision, {"--seed", seed});
      CHECK(json.at("replicas_identical") == true);
      CHECK(json.at("precision") == precision);
      mean[precision] += json.at("test_accuracy").get<double>() / 5;
    }
  CAPTURE(mean["f32"]);
  CHECK(mean["f32"] > 0.95);
  CHECK(std::abs(mean["bf16"] - mean["f32"]) < 0.005);
  CHECK(std::abs(mean["f16"] - mean["f32"]) < 0.005);
}

TEST_CASE("precision: the losses of an epoch are those of f32 to 1e-2, and not the same") {
  const Words options = {"--epochs", "1"};
  const nlohmann::json exact = summary_of("f32", options);
  const auto losses = exact.at("losses").get<std::vector<double>>();
  for (const std::string precision : {"bf16", "f16"}) {
    CAPTURE(precision);
    const nlohmann::json json = summary_of(precision, options);
    const auto rounded = json.at("losses").get<std::vector<double>>();
    REQUIRE(rounded.size() == losses.size());
    for (std::size_t i = 0; i < losses.size(); ++i)
      CHECK(rounded[i] == doctest::Approx(losses[i]).epsilon(1e-2));
    CHECK(json.at("parameter_digest") != exact.at("parameter_digest"));
  }
}

TEST_CASE("precision: a run says what multiplies; f32 says nothing") {
  const Words options = {"--epochs", "1", "--device", "cpu"};
  CHECK(test::contains(train("bf16", options).err, "products of bf16 ("));
  CHECK(test::contains(train("f16", options).err, "products of f16 (rounded, then multiplied"));
  CHECK(!test::contains(train("f32", options).err, "products of"));
  // The processor has no tf32: f32 it is, to the last bit.
  CHECK(test::contains(train("tf32", options).err, "products of f32 (the cpu has no tf32)"));
  CHECK(summary_of("tf32", options).at("parameter_digest") ==
        summary_of("f32", options).at("parameter_digest"));
}

TEST_CASE("precision: refused by name") {
  const auto refused = [](const Ended& ended, const std::string& part) {
    CAPTURE(ended.err);
    CHECK(ended.code != 0);
    CHECK(test::contains(ended.err, part));
    CHECK(test::count(ended.err, "error: ") == 1);
  };
  refused(train("f8"), "--precision");
  const TemporaryFolder folder;
  const Words saved = {"--epochs", "1", "--checkpoint", folder / "run"};
  REQUIRE(train("bf16", saved).code == 0);
  Words resumed = saved;
  resumed.push_back("--resume");
  refused(train("f32", resumed), "has --precision bf16, this command line f32");
  refused(train("f16", resumed), "has --precision bf16, this command line f16");
  Words kept = saved;
  kept.insert(kept.end(), {"--keep", "3", "--save-model", folder / "run.2"});
  refused(train("f32", kept), "is where --keep 3 keeps an older checkpoint");
  // Another one on rank 1.
  const Ended ended = test::run({LOCKSTEP_BIN_DIR "/lockstep-run", "-n", "2", "/bin/sh", "-c",
                                 "p=f32; [ $RANK = 1 ] && p=bf16; exec '" LOCKSTEP_BIN_DIR
                                 "/train_mlp' --precision $p"});
  refused(ended, "bf16");
}
