// train --lanes and --deterministic: one hash, whoever trains; and what is refused.

#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/sample.h"
#include "structure/tree.h"
#include "support/program.h"
#include "support/temporary_folder.h"

using namespace lockstep;
using lockstep::test::contains;
using lockstep::test::Ended;
using lockstep::test::TemporaryFolder;

namespace trained_with_lanes {
namespace {

using Words = std::vector<std::string>;

Ended train(const Words& options) { return test::run(test::sample_command("train_mlp", options)); }

/// The hash of the model, and the losses of all steps in all their digits.
std::string hash(Words options) {
  const TemporaryFolder folder;
  options.insert(options.end(), {"--json", folder / "json"});
  const Ended ended = train(options);
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  const nlohmann::json json = nlohmann::json::parse(std::ifstream(folder / "json"));
  return json.at("parameter_digest").get<std::string>() + json.at("losses").dump();
}

}  // namespace

TEST_CASE("lanes: train ends with one hash, whoever trains, over whatever") {
  const Words options = {"--lanes", "8", "--batch", "100", "--epochs", "2", "--optimizer", "adam"};
  const std::string one = hash(options + Words{"--ranks", "1"});
  CHECK(hash(options + Words{"--ranks", "2", "--transport", "tcp"}) == one);
  CHECK(hash(options + Words{"--ranks", "3", "--bucket-cap-mb", "0.02"}) == one);
  CHECK(hash(options + Words{"--ranks", "4", "--transport", "threads"}) == one);
  CHECK(hash(options + Words{"--ranks", "3", "--shard-optimizer"}) == one);
  CHECK(hash(options + Words{"--ranks", "3", "--audit", "2"}) == one);
  CHECK(hash(options + Words{"--ranks", "5", "--comm", "halving"}) == one);
  CHECK(hash({"--batch", "50", "--epochs", "2", "--optimizer", "adam", "--ranks", "2"}) != one);
}

// Without a wish, such sums over tcp would take a ring: buckets, and BatchNorm's sums in backward.
TEST_CASE("lanes: sums that are large for tcp add in tree order, too") {
  const auto hash_of = [](const Words& options) {
    const Words same = {
        LOCKSTEP_BIN_DIR "/bench_worlds", "--epochs", "1", "--batch", "500", "--width", "40000"};
    const Ended ended = test::run(same + options);
    CAPTURE(ended.err);
    REQUIRE(ended.code == 0);
    return ended.out;
  };
  const std::string one = hash_of({"--ranks", "1"});
  CHECK(hash_of({"--ranks", "5", "--transport", "tcp"}) == one);
  CHECK(hash_of({"--ranks", "5", "--lanes", "0"}) != one);
}

TEST_CASE("lanes: a run goes on with another number of ranks, with the bits of one that did not") {
  const TemporaryFolder folder;
  const Words options = {"--lanes",
                         "8",
                         "--batch",
                         "64",
                         "--epochs",
                         "2",
                         "--checkpoint",
                         folder / "c",
                         "--checkpoint-every",
                         "7"};
  const std::string whole = hash({"--lanes", "8", "--batch", "64", "--epochs", "2"});
  REQUIRE(train(options + Words{"--ranks", "3", "--keep", "5"}).code == 0);
  std::filesystem::rename(folder / "c.2", folder / "c");  // in the middle of an epoch
  const std::string rest = hash(options + Words{"--ranks", "2", "--resume"});
  CHECK(rest.substr(0, 64) == whole.substr(0, 64));
  CHECK(rest.size() < whole.size());
  CHECK(whole.ends_with(rest.substr(65)));  // the losses that are left
  Words other_lanes = options + Words{"--ranks", "2", "--resume"};
  other_lanes[1] = "16";
  const Ended other = train(other_lanes);
  CHECK(other.code != 0);
  CHECK(contains(other.err, "has --lanes 8, this command line 16"));
}

#if defined(__AVX2__) && defined(__FMA__)
TEST_CASE("lanes: --deterministic machine reaches README's hash") {
  if (!test::on_cpu()) return;  // that level is of processors
  std::string published;
  for (const std::string& line : test::lines_of_file("README.md"))
    if (line.starts_with("sha256=")) published = line;
  REQUIRE(published.size() == 7 + 64);
  for (const char* ranks : {"1", "3"}) {
    const Ended ended = train({"--deterministic", "machine", "--ranks", ranks});
    CAPTURE(ended.out);
    CHECK(ended.code == 0);
    CHECK(contains(ended.out, published + " deterministic=machine lanes=8\n"));
    CHECK(contains(ended.out, "This is the hash that every machine reaches.\n"));
  }
  // Another training is not compared with it.
  const Words others[] = {{"--epochs", "1"},         {"--batch", "48"},       {"--seed", "2"},
                          {"--optimizer", "lion"},   {"--lr", "0.01"},        {"--momentum", "0.5"},
                          {"--weight-decay", "0.1"}, {"--layers", "64,8,10"}, {"--lanes", "4"},
                          {"--no-shuffle"}};
  for (const Words& other : others) {
    const Ended ended = train(Words{"--deterministic", "machine", "--ranks", "1"} + other);
    CAPTURE(other.front());
    CHECK(ended.code == 0);
    CHECK(contains(ended.out, "sha256="));
    CHECK_FALSE(contains(ended.out, published));
    CHECK_FALSE(contains(ended.out, "very machine"));
  }
}
#endif

TEST_CASE("lanes: what cannot give a level is refused by name") {
  const auto refused = [](const Words& options, int code, const std::string& why) {
    const Ended ended = train(options + Words{"--epochs", "1", "--ranks", "2"});
    CAPTURE(ended.err);
    CHECK(ended.code == code);
    CHECK(contains(ended.err, why));
    CHECK(ended.out == "");
  };
  refused({"--deterministic", "world", "--comm", "ring"}, 1, " does not: take --comm direct");
  refused({"--deterministic", "layout", "--comm", "ring"}, 1, "bits of level 'layout'");
  refused({"--deterministic", "world", "--hook", "bf16"}, 1, "a communication hook rounds");
  refused({"--deterministic", "machine", "--precision", "bf16"}, 2, "--precision bf16");
  refused({"--deterministic", "most"}, 2, "--deterministic");
  refused({"--lanes", "6"}, 2, "a power of two");
  refused({"--lanes", "1"}, 2, "at least 2 are needed");
  refused({"--lanes", "8", "--padded"}, 2, "--padded");
}

}  // namespace trained_with_lanes
