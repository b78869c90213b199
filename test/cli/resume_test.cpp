// `train --checkpoint FILE --resume`: a run that is killed and started again ends as if it had not.

#include <doctest/doctest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <thread>

#include "support/drill.h"
#include "support/expect.h"
#include "support/program.h"
#include "support/temporary_folder.h"

using namespace lockstep;
using lockstep::test::Ended;
using lockstep::test::TemporaryFolder;

namespace {

using Words = std::vector<std::string>;

Words train_command(Words options) {
  options.insert(options.begin(), LOCKSTEP_BIN_DIR "/train_mlp");
  return options;
}

/// The summary of a run that must succeed.
nlohmann::json summary(const Words& options) {
  const TemporaryFolder folder;
  const Ended ended = test::run(train_command(options + Words{"--json", folder / "json"}));
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  return nlohmann::json::parse(std::ifstream(folder / "json"));
}

const std::vector<Words>& kinds() {
  static const std::vector<Words> all = {{"--optimizer", "sgd"},
                                         {"--optimizer", "sgd", "--comm", "ring"},
                                         {"--optimizer", "adam", "--hook", "bf16"},
                                         {"--optimizer", "adamw"},
                                         {"--optimizer", "rmsprop", "--momentum", "0.5"},
                                         {"--optimizer", "adam", "--shard-optimizer"},
                                         {"--optimizer", "adam", "--precision", "bf16"},
                                         {"--optimizer", "sgd", "--precision", "f16"},
                                         {"--optimizer", "lion", "--ranks", "3"}};
  return all;
}

/// A tag's values in metrics.csv by step, each of which must be there once.
std::map<std::int64_t, double> values_of(const std::string& folder, const std::string& tag) {
  std::map<std::int64_t, double> values;
  std::ifstream file(folder + "/metrics.csv");
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream cells(line);
    std::string step, name, value;
    std::getline(std::getline(std::getline(cells, step, ','), name, ','), value, ',');
    if (name == tag)
      test::expect(values.try_emplace(std::stoll(step), std::strtod(value.c_str(), nullptr)).second,
                   "twice: {}", line);
  }
  return values;
}

/// A Python that can import tensorboard, or "".
std::string python_with_tensorboard() {
  const char* const given = std::getenv("LOCKSTEP_PYTHON");
  for (const std::string& python : {std::string(given ? given : "python3"), std::string("python3")})
    if (test::run({python, "-c", "import tensorboard"}).code == 0) return python;
  return "";
}

/// The folder's scalars as TensorBoard reads them: by tag, pairs of step and value.
nlohmann::json read_by_tensorboard(const std::string& python, const std::string& folder) {
  const Ended ended = test::run({python, "-c", R"(
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
events.Reload()
print(json.dumps({tag: [(e.step, e.value) for e in events.Scalars(tag)]
                  for tag in events.Tags()["scalars"]}))
)",
                                 folder});
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  return nlohmann::json::parse(ended.out);
}

}  // namespace

TEST_CASE("resume: in the middle of an epoch, with the bits of the run that was not interrupted") {
  for (const Words& kind : kinds()) {
    const TemporaryFolder folder;
    CAPTURE(kind);
    const Words options = kind + Words{"--epochs", "3"};
    const nlohmann::json whole = summary(options);
    const Words saved = options + Words{"--checkpoint", folder / "run"};
    // The last of these checkpoints but the one at the end: step 29 of 72, in the second epoch.
    summary(kind + Words{"--epochs", "2", "--checkpoint", folder / "run", "--checkpoint-every",
                         "29", "--keep", "2"});
    std::filesystem::rename(folder / "run.1", folder / "run");
    const nlohmann::json resumed = summary(saved + Words{"--resume"});
    CHECK(resumed.at("parameter_digest") == whole.at("parameter_digest"));
    const auto losses = whole.at("losses").get<std::vector<double>>();
    const auto later = resumed.at("losses").get<std::vector<double>>();
    REQUIRE(later.size() < losses.size());
    CHECK(later.size() % 24 != 0);  // it was in the middle
    CHECK(std::equal(later.rbegin(), later.rend(), losses.rbegin()));
  }
}

TEST_CASE("resume: --metrics has every step once, with the losses of the run as a whole") {
  const TemporaryFolder folder;
  const Words kind = {"--optimizer", "adam", "--batch", "10", "--metrics"};
  const nlohmann::json whole = summary(kind + Words{folder / "whole", "--epochs", "3"});
  const Words part = kind + Words{folder / "part", "--checkpoint", folder / "run"};
  summary(part + Words{"--epochs", "2", "--checkpoint-every", "29", "--keep", "2"});
  CHECK(values_of(folder / "part", "train/loss").size() == 150);
  std::filesystem::rename(folder / "run.1", folder / "run");  // of step 145
  summary(part + Words{"--epochs", "3", "--resume"});
  std::map<std::int64_t, double> losses;
  for (const double loss : whole.at("losses"))
    losses[static_cast<std::int64_t>(losses.size()) + 1] = loss;
  REQUIRE(losses.size() == 225);
  for (const char* name : {"whole", "part"}) {
    CAPTURE(name);
    CHECK(values_of(folder / name, "train/loss") == losses);
    const auto accuracy = values_of(folder / name, "test/accuracy");
    CHECK(accuracy.size() == 3);
    CHECK(accuracy.at(225) == whole.at("test_accuracy"));
    CHECK(values_of(folder / name, "train/lr").at(75) == 0.001);
    CHECK(values_of(folder / name, "train/accuracy").size() == 3);
    CHECK(values_of(folder / name, "train/samples_per_second").at(150) > 0);
    for (const auto& [step, share] : values_of(folder / name, "train/exposed_share")) {
      CHECK(share >= 0);
      CHECK(share <= 1);
    }
  }
  CHECK(values_of(folder / "whole", "epoch/loss").at(225) == whole.at("train_loss"));

  const std::string python = python_with_tensorboard();
  if (python.empty()) {
    MESSAGE("skipped: no Python with tensorboard ($LOCKSTEP_PYTHON, python3) reads the files");
    return;
  }
  const nlohmann::json read = read_by_tensorboard(python, folder / "part");
  CHECK(read.size() == 7);
  for (const auto& [tag, events] : read.items()) {
    CAPTURE(tag);
    const std::map<std::int64_t, double> values = values_of(folder / "part", tag);
    REQUIRE(events.size() == values.size());
    std::size_t k = 0;
    for (const auto& [step, value] : values) {
      CHECK(events.at(k).at(0) == step);
      CHECK(events.at(k++).at(1) == static_cast<float>(value));
    }
  }
}

TEST_CASE("drill resume: killed at random moments until it ends, a run has the bits of one") {
  std::vector<std::string> digests(kinds().size());
  test::drill(10, [&](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const std::size_t which = seed % kinds().size();
    const TemporaryFolder folder;
    const Words options = kinds()[which] + Words{"--epochs", "12"};
    if (digests[which].empty()) digests[which] = summary(options).at("parameter_digest");
    Words command = train_command(
        options + Words{"--checkpoint", folder / "run", "--checkpoint-every", "2", "--resume",
                        "--json", folder / "json", "--metrics", folder / "metrics"});
    if (random() % 2) command.push_back("--checkpoint-async");
    for (int killed = 0;; ++killed) {
      // The launcher's guardian is killed with it: what they leave goes with the folder.
      test::Process process(command, {"TMPDIR=" + folder / ""});
      if (killed < 8) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20 + random() % 300));
        for (const pid_t pid : process.family()) ::kill(pid, SIGKILL);
      }
      const Ended ended = process.wait();
      if (ended.code == 0) break;
      test::expect(ended.signal == SIGKILL || killed < 8, "{}", ended.err);
      process.wait_for_empty_family();
    }
    const auto json = nlohmann::json::parse(std::ifstream(folder / "json"));
    test::expect(json.at("parameter_digest") == digests[which], "other bits");
    const auto losses = values_of(folder / "metrics", "train/loss");
    test::expect(losses.begin()->first == 1 && losses.size() % 12 == 0 &&
                     losses.rbegin()->first == static_cast<std::int64_t>(losses.size()),
                 "{} losses from step {} to {}", losses.size(), losses.begin()->first,
                 losses.rbegin()->first);
  });
}

TEST_CASE("checkpoint: a disk without room: one line, with the path and what is left") {
  for (const bool async : {false, true}) {
    CAPTURE(async);
    const TemporaryFolder folder;
    Words command = train_command(
        {"--ranks", "1", "--epochs", "1", "--checkpoint", folder / "run", "--keep", "2"});
    if (async) command.push_back("--checkpoint-async");
    // The file would be some 100 KiB; no file may have more than 20 (of 512 bytes: 40 blocks).
    const Words limited = {"sh", "-c", "trap '' XFSZ; ulimit -f 40; exec \"$@\"", "sh"};
    const auto fails = [&](const std::string& left) {
      const Ended ended = test::run(limited + command);
      CAPTURE(ended.err);
      CHECK(ended.code == 1);
      CHECK(test::contains(ended.err, "[save] cannot write '" + (folder / "run") + "': "));
      CHECK(test::contains(ended.err, left));
      CHECK(test::count(ended.err, "error: ") == 1);
    };
    const auto files = [&] {
      return std::distance(std::filesystem::directory_iterator(folder / ""), {});
    };
    fails("(there is no older one)");
    CHECK(files() == 0);
    CHECK(test::run(command).code == 0);
    fails("(still there: '" + (folder / "run") + "')");
    CHECK(files() == 1);
    CHECK(test::run(command + Words{"--resume"}).code == 0);
    fails("(still there: '" + (folder / "run") + "', '" + (folder / "run.1") + "')");
    CHECK(files() == 2);
  }
}

TEST_CASE("drill restarts: killed ranks, dropout, local steps: the bits of a run without a kill") {
  std::map<std::string, std::string> digests;
  test::drill(8, [&](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const TemporaryFolder folder;
    const std::string kind = seed % 2 ? "local" : "dropout",
                      ranks = std::to_string(2 + random() % 3);
    Words command = {LOCKSTEP_BIN_DIR "/lockstep-run", "-n", ranks, "--restarts", "20",
                     LOCKSTEP_BIN_DIR "/resumed_run",  kind};
    std::string& digest = digests[kind + ranks];
    if (digest.empty()) digest = test::run(command + Words{folder / "whole"}).out;
    test::expect(test::contains(digest, "digest="), "no digest: '{}'", digest);
    command.push_back(folder / "run");
    if (random() % 2) command.push_back("async");
    test::Process process(command);
    std::optional<Ended> ended;
    for (int kills = 0; kills < 6 && !(ended = process.try_wait()); ++kills) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10 + random() % 100));
      const std::vector<pid_t> family = process.family();
      const pid_t victim = family.empty() ? process.id() : family[random() % family.size()];
      if (victim != process.id()) ::kill(victim, SIGKILL);
    }
    if (!ended) ended = process.wait();
    test::expect(ended->code == 0, "{}", ended->err);
    // A rank that is killed after the last line makes the job print it again.
    test::expect(ended->out.ends_with(digest), "{} instead of {}", ended->out, digest);
  });
}

TEST_CASE("resume: on another number of ranks every sample is taken once, losses agree") {
  const Words options = {"--epochs", "3"};
  const TemporaryFolder folder;
  const nlohmann::json whole = summary(options + Words{"--ranks", "4", "--batch", "12"});
  for (const auto& [ranks, batch] :
       {std::pair("1", "48"), std::pair("2", "24"), std::pair("3", "16")}) {
    CAPTURE(ranks);
    summary({"--ranks", "4", "--batch", "12", "--epochs", "2", "--checkpoint", folder / "run",
             "--checkpoint-every", "41", "--keep", "2"});
    std::filesystem::rename(folder / "run.1", folder / "run");
    const auto losses = whole.at("losses").get<std::vector<double>>();
    const auto later = summary(options + Words{"--ranks", ranks, "--batch", batch, "--checkpoint",
                                               folder / "run", "--resume"})
                           .at("losses")
                           .get<std::vector<double>>();
    REQUIRE(later.size() == losses.size() - 41);
    for (std::size_t i = 0; i < later.size(); ++i)
      CHECK(later[i] == doctest::Approx(losses[41 + i]).epsilon(1e-5));
  }
}

TEST_CASE("resume: what the command line would change silently is refused") {
  const TemporaryFolder folder;
  const Words options = {"--epochs", "1", "--checkpoint", folder / "run"};
  summary(options + Words{"--lr", "0.1"});
  const auto refused = [&](const Words& more, const std::string& part) {
    const Ended ended = test::run(train_command(options + Words{"--resume"} + more));
    CAPTURE(ended.err);
    CHECK(ended.code != 0);
    CHECK(test::contains(ended.err, "error: "));
    CHECK(test::contains(ended.err, part));
  };
  refused({"--lr", "0.2"}, "has SGD's lr 0.1, this command line SGD's lr 0.2");
  refused({"--momentum", "0.5"}, "momentum");
  refused({"--optimizer", "adam"}, "lacks 'group 0.beta1'");
  refused({"--seed", "5"}, "has seed 0, this command line 5");
  refused({"--layers", "64,32,10"}, "layout");
  std::filesystem::resize_file(folder / "run", std::filesystem::file_size(folder / "run") - 1);
  refused({}, "bytes, but");
}

TEST_CASE("resume: with no checkpoint yet the run begins, and says so") {
  const TemporaryFolder folder;
  const Ended ended = test::run(train_command(
      {"--epochs", "1", "--checkpoint", folder / "run", "--resume", "--checkpoint-every", "5"}));
  CHECK(ended.code == 0);
  CHECK(test::contains(ended.err, "no '" + (folder / "run") + "' yet"));
  const Ended again =
      test::run(train_command({"--epochs", "1", "--checkpoint", folder / "run", "--resume"}));
  CHECK(again.code == 0);
  CHECK(test::contains(again.err, "goes on from"));
  CHECK(again.out.substr(0, 28) == ended.out.substr(0, 28));  // final test_accuracy=0.dddd
}

TEST_CASE("drill kill-while-saving: there is always one whole checkpoint") {
  test::drill(3, [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const TemporaryFolder folder;
    Words command =
        train_command({"--layers", "64,512,512,10", "--checkpoint", folder / "run",
                       "--checkpoint-every", "1", "--resume", "--keep", "2", "--epochs", "1000"});
    if (random() % 2) command.push_back("--checkpoint-async");
    for (int round = 0; round < 3; ++round) {
      test::Process process(command);
      while (!std::filesystem::exists(folder / "run")) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 200000));
      for (const pid_t pid : process.family()) ::kill(pid, SIGKILL);
      process.wait();
      process.wait_for_empty_family();
    }
    // It goes on from what is there, for 0 epochs more, and nothing is left beside the two.
    const Ended ended =
        test::run(train_command({"--layers", "64,512,512,10", "--checkpoint", folder / "run",
                                 "--resume", "--keep", "2", "--epochs", "1"}));
    test::expect(ended.code == 0, "{}", ended.err);
    test::expect(test::contains(ended.err, "goes on from"), "{}", ended.err);
    for (const auto& entry : std::filesystem::directory_iterator(folder / "")) {
      const std::string name = entry.path().filename();
      test::expect(name == "run" || name == "run.1", "left behind: {}", name);
    }
  });
}

TEST_CASE("restarts: a rank is killed again and again, and the run ends with the bits of one") {
  const TemporaryFolder folder;
  const Words options = {"--epochs",           "6", "--optimizer", "adam",
                         "--checkpoint-every", "2", "--resume"};
  // Rank 1 is killed by itself in the middle of its first two lives.
  const std::string script =
      "if [ $RANK = 1 ] && [ $LOCKSTEP_RESTART -lt 2 ]; then "
      "(sleep 0.15; kill -9 $$) & fi; exec \"$@\"";
  Words command = {
      LOCKSTEP_BIN_DIR "/lockstep-run", "-n", "3", "--restarts", "4", "sh", "-c", script, "sh"};
  command = command + train_command(options + Words{"--checkpoint", folder / "run", "--json",
                                                    folder / "json"});
  const Ended ended = test::run(command);
  CAPTURE(ended.err);
  CHECK(ended.code == 0);
  const nlohmann::json whole = summary({"--epochs", "6", "--optimizer", "adam", "--ranks", "3"});
  CHECK(nlohmann::json::parse(std::ifstream(folder / "json")).at("parameter_digest") ==
        whole.at("parameter_digest"));
}

TEST_CASE("restarts: as often as was said, each failure is told; not what a restart cannot mend") {
  const std::string launcher = LOCKSTEP_BIN_DIR "/lockstep-run";
  const Ended failing = test::run({launcher, "-n", "2", "--restarts", "2", "sh", "-c",
                                   "echo life $LOCKSTEP_RESTART; [ $RANK = 0 ] || exit 7"});
  CAPTURE(failing.err);
  CHECK(failing.code == 7);
  CHECK(test::count(failing.err, "rank 1 failed with exit code 7") == 3);
  CHECK(test::count(failing.err, "restart 1 of 2\n") == 1);
  CHECK(test::count(failing.err, "restart 2 of 2\n") == 1);
  for (const char* life : {"life 0\n", "life 1\n", "life 2\n"})
    CHECK(test::count(failing.out, life) == 2);
  const Ended wrong = test::run({launcher, "-n", "2", "--restarts", "2", "sh", "-c", "exit 2"});
  CHECK(wrong.code == 2);
  CHECK(!test::contains(wrong.err, "restart"));
  const Ended well = test::run({launcher, "-n", "2", "--restarts", "2", "true"});
  CHECK(well.code == 0);
  CHECK(well.err.empty());
  CHECK(test::run({launcher, "-n", "2", "--restarts", "-1", "true"}).code == 2);
  CHECK(test::run({launcher, "-n", "2", "--nnodes", "2", "--restarts", "1", "true"}).code == 2);
}
