// `train --survive`: ranks are lost and join at random moments, and the run ends with the bits of
// the undisturbed one.

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <random>
#include <thread>

#include "faults/survivors.h"
#include "support/device.h"
#include "support/drill.h"

using namespace lockstep::test;
namespace test = lockstep::test;

namespace {

/// How often ranks of a new world have said what they train, before their first step.
std::ptrdiff_t worlds_of(const test::Process& process) {
  const std::string text = process.err(), word = " training and ";
  std::ptrdiff_t count = 0;
  for (std::size_t at = 0; (at = text.find(word, at)) != text.npos; at += word.size()) ++count;
  return count;
}

/// From a loss to the first step of the ranks that are left, in ms.
class LostTime {
 public:
  void add(double milliseconds) { all_.push_back(milliseconds); }
  /// For `./lockstep drill`.
  ~LostTime() {
    if (!std::getenv("LOCKSTEP_RUNS") || all_.empty()) return;
    std::ranges::sort(all_);
    std::fprintf(stderr,
                 "drill: %zu losses; until the others trained, median %.0f ms, worst %.0f ms\n",
                 all_.size(), all_[all_.size() / 2], all_.back());
  }

 private:
  std::vector<double> all_;
};

/// Whom a drill has disturbed.
struct Disturbed {
  std::vector<int> numbers;    ///< as the launcher counts
  std::vector<pid_t> looping;  ///< until the signal comes once more
};

/// Ranks that hang while no other one waits for them, nor has ended: all, or one whose World has
/// ended. The launcher waits, as it would for ranks that have work to do. They go on if so for
/// longer than it takes to find one that hangs.
void let_forgotten_go_on(test::Process& process, std::optional<Ended>& ended, Disturbed& disturbed,
                         LauncherLoad& load) {
  using Clock = std::chrono::steady_clock;
  const auto loops = [&](pid_t rank) { return std::ranges::count(disturbed.looping, rank) > 0; };
  for (Clock::time_point seen = Clock::now(); !(ended = process.try_wait()); load.look()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const auto ranks = ranks_of(process.id());
    const bool all = std::ranges::all_of(
        ranks, [&](pid_t rank) { return state_of(rank) == 'T' || loops(rank); });
    if (ranks.empty() || !all) seen = Clock::now();
    if (Clock::now() - seen < std::chrono::seconds(6)) continue;
    for (const pid_t rank : ranks) ::kill(rank, loops(rank) ? SIGUSR2 : SIGCONT);
    disturbed.looping.clear();
  }
}

/// The most that a launcher took of a core, for `./lockstep drill`.
struct WorstLoad {
  double share = 0;
  ~WorstLoad() {
    if (std::getenv("LOCKSTEP_RUNS"))
      std::fprintf(stderr, "drill: launchers took up to %.2f %% of a core\n", share * 100);
  }
};

/// Sends the signals at random moments: SIGUSR1 to the launcher, which adds a rank, others to a
/// random rank if `least` are left without it; SIGUSR2 lets it loop (support/hangs.cpp). Some come
/// while ranks join, or save.
void disturb(std::mt19937_64& random, const Words& options, const std::vector<int>& signals,
             std::size_t least = 1, LostTime* lost_time = nullptr) {
  using Clock = std::chrono::steady_clock;
  const TemporaryFolder folder;
  const bool stops =
      std::ranges::find_first_of(signals, std::array{SIGSTOP, SIGUSR2}) != signals.end();
  Words words = command({"--survive", "--json", folder / "json", "--timeout", stops ? "2" : "20"});
  words.insert(words.end(), options.begin(), options.end());
  if (options[1] == "1") {  // one rank has no launcher by itself
    const Words launcher = {LOCKSTEP_BIN_DIR "/lockstep-run", "-n", "1", "--survive"};
    words.insert(words.begin(), launcher.begin(), launcher.end());
  }
  if (random() % 2 == 0)
    for (const std::string& word : {std::string("--checkpoint"), folder / "checkpoint",
                                    std::string("--checkpoint-every"), std::string("40")})
      words.push_back(word);
  test::Process process(words, {"LD_PRELOAD=" LOCKSTEP_HANGS});
  std::optional<Ended> ended;
  Disturbed disturbed;
  LauncherLoad load(process.id());
  for (std::size_t i = 0; i < signals.size() && !(ended = process.try_wait()); ++i) {
    const bool soon = i > 0 && random() % 2 == 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % (soon ? 30 : 500)));
    const auto ranks = ranks_of(process.id());
    const bool adds = signals[i] == SIGUSR1;
    if (ranks.size() < (adds ? 1 : least + 1)) continue;  // not started yet, or too few
    const auto before = worlds_of(process);
    const auto start = Clock::now();
    const pid_t whom = adds ? process.id() : ranks[random() % ranks.size()];
    if (!adds) disturbed.numbers.push_back(number_of(whom));
    if (signals[i] == SIGUSR2 && std::ranges::count(disturbed.looping, whom) > 0)
      std::erase(disturbed.looping, whom);
    else if (signals[i] == SIGUSR2)
      disturbed.looping.push_back(whom);
    ::kill(whom, signals[i]);
    load.look();
    if (!lost_time || i + 1 < signals.size()) continue;
    while (!(ended = process.try_wait()) && worlds_of(process) == before)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const std::chrono::duration<double, std::milli> passed = Clock::now() - start;
    if (before > 0 && !ended) lost_time->add(passed.count());
  }
  if (!ended) let_forgotten_go_on(process, ended, disturbed, load);
  static WorstLoad worst;
  worst.share = std::max(worst.share, load.share());
  test::expect(load.share() < 0.05, "the launcher took {} of a core", load.share());
  test::expect(ended->code == 0, "{}", ended->err);
  check_names(ended->err, disturbed.numbers);
  test::expect(stops || !test::contains(ended->err, " and was killed"), "who did hang? {}",
               ended->err);
  const nlohmann::json json = json_in(folder / "json");
  test::expect(json.at("parameter_digest") == whole().at("parameter_digest"), "other bits: {}",
               ended->err);
  test::expect(json.at("losses") == whole().at("losses"), "other losses");
  process.wait_for_empty_family();
}

/// Some of four ranks are killed, stop, loop or leave in a step, in a save of the checkpoint, or
/// after the last collective. (One that is slow and one that is lost do not go together: the others
/// meet again, and wait for the first for no longer than the timeout.)
void disturb_by_plan(std::mt19937_64& random) {
  std::vector<int> ranks = {0, 1, 2, 3}, disturbed;
  std::shuffle(ranks.begin(), ranks.end(), random);
  std::string plan;
  for (std::uint64_t k = 0, losses = 1 + random() % 3; k < losses; ++k) {
    const char* const moments[] = {"step", "save", "end"};
    const char* const deeds[] = {"kill", "loop", "stop", "leave"};
    const std::uint64_t moment = random() % 3, deed = random() % 4;
    plan += fmt::format("{}{}:{}@{}", k ? "," : "", ranks[k], deeds[deed], moments[moment]);
    disturbed.push_back(ranks[k]);
  }
  const Ended ended = survive_deeds(plan);
  test::expect(ended.code == 0, "{}: {}", plan, ended.err);
  test::expect(ended.out.substr(0, 64) == undisturbed_deeds().substr(0, 64), "{}: other bits",
               plan);
  check_names(ended.err, disturbed);
}

}  // namespace

TEST_CASE("drill survivors: killed at random moments, ranks leave a run with the bits of a whole") {
  LostTime lost_time;
  test::drill(6, [&](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const Words options = {"--ranks", "4", "--transport", seed % 2 ? "tcp" : "shm"};
    disturb(random, options, std::vector<int>(1 + seed / 2 % 3, SIGKILL), 1, &lost_time);
  });
}

TEST_CASE("drill survivors-of-hangs: ranks that stop or loop, also while they join, are killed") {
  test::drill(5, [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    if (seed % 3 == 2) return disturb_by_plan(random);
    const Words options = {"--ranks", "4", "--transport", seed % 2 ? "tcp" : "shm"};
    const std::vector<int> ways[] = {
        {SIGSTOP, SIGSTOP}, {SIGUSR2, SIGKILL}, {SIGUSR2, SIGKILL, SIGKILL}, {SIGUSR2, SIGSTOP}};
    disturb(random, options, ways[seed / 2 % 4]);
  });
}

// Two others are left, as one of them may be a rank that has not joined yet.
TEST_CASE("drill joiners: ranks join at random moments, also while others are lost") {
  test::drill(5, [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const Words options = {"--ranks", seed % 3 ? "2" : "1", "--transport",
                           seed % 2 ? "tcp" : "shm"};
    std::vector<int> signals = {SIGUSR1, SIGUSR1, SIGUSR1, SIGUSR1};
    if (seed / 2 % 3 == 1) signals = {SIGUSR1, SIGUSR1, SIGKILL, SIGUSR1, SIGKILL};
    if (seed / 2 % 3 == 2) signals = {SIGUSR1, SIGUSR1, SIGUSR2, SIGUSR1, SIGKILL};
    disturb(random, options, signals, 2);
  });
}

TEST_CASE("drill replaced: a new rank takes the place of each that is killed, or loops") {
  test::drill(3, [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const Words options = {"--ranks", "3",           "--respawn",
                           "2",       "--transport", seed % 2 ? "tcp" : "shm"};
    disturb(random, options, {SIGKILL, seed / 2 % 2 ? SIGUSR2 : SIGKILL, SIGKILL}, 2);
  });
}

TEST_CASE("survive: what GPUs hold travels through the host, and a rank can be lost") {
  if (test::on_cpu()) return;
  const TemporaryFolder folder;
  const Words gpu = {"--device", std::string(lockstep::Device::name_of(test::test_device().kind))};
  const auto train = [&](const Words& options) {
    Words words = {LOCKSTEP_BIN_DIR "/train_mlp", "--lanes", "8", "--epochs", "3"};
    words.insert(words.end(), gpu.begin(), gpu.end());
    words.insert(words.end(), options.begin(), options.end());
    return words;
  };
  const Ended alone = test::run(train({"--ranks", "1", "--json", folder / "alone"}));
  REQUIRE(alone.code == 0);
  test::Process process(train({"--ranks", "3", "--survive", "--json", folder / "json"}));
  while (worlds_of(process) < 1 && !process.try_wait()) ::usleep(1000);
  const auto ranks = ranks_of(process.id());
  REQUIRE(ranks.size() == 3);
  ::kill(ranks[2], SIGKILL);
  const Ended ended = process.wait();
  CAPTURE(ended.err);
  CHECK(ended.code == 0);
  CHECK(test::contains(ended.err, "rank 2 was killed by SIGKILL; 2 ranks go on\n"));
  const auto json = json_in(folder / "json");
  CHECK(json.at("algorithm") == "two-shot-shared");
  CHECK(json.at("parameter_digest") == json_in(folder / "alone").at("parameter_digest"));
}

TEST_CASE("survive: a rank that is added is in the world, and the launcher says so") {
  const TemporaryFolder folder;
  test::Process process(command({"--ranks", "2", "--survive", "--json", folder / "json"}, "800"));
  const auto says = [&](const std::string& text) {
    while (!test::contains(process.err(), text) && !process.try_wait()) ::usleep(1000);
    return test::contains(process.err(), text);
  };
  REQUIRE(says(" training and "));
  ::kill(process.id(), SIGUSR1);
  REQUIRE(says("rank 2 joins; 3 ranks go on\n"));
  while (worlds_of(process) < 2 && !process.try_wait()) ::usleep(1000);
  const auto ranks = ranks_of(process.id());
  REQUIRE(ranks.size() == 3);
  ::kill(ranks[0], SIGKILL);
  REQUIRE(says("rank 0 was killed by SIGKILL; 2 ranks go on\n"));
  const Ended ended = process.wait();
  CHECK(ended.code == 0);
  CHECK(json_in(folder / "json").at("members") == std::vector{1, 2});
  CHECK(json_in(folder / "json").at("replicas_identical") == true);
}

TEST_CASE("survive: one rank more than there are lanes is refused, and the others go on") {
  Process process({LOCKSTEP_BIN_DIR "/train_mlp", "--lanes", "2", "--epochs", "150", "--ranks", "2",
                   "--survive"});
  while (worlds_of(process) < 1 && !process.try_wait()) ::usleep(1000);
  ::kill(process.id(), SIGUSR1);
  const Ended ended = process.wait();
  CHECK(ended.code == 0);
  expect(contains(ended.err,
                  "cannot add a rank: the job has 2, and its program trains on 2 at most\n"),
         "{}", ended.err);
}

TEST_CASE("survive: a job that ends with its first lost rank gets no others") {
  test::Process process(test::launched(2, "exec sleep 1"));
  while (ranks_named(process.id(), "sleep").size() < 2 && !process.try_wait()) ::usleep(1000);
  ::kill(process.id(), SIGUSR1);
  const Ended ended = process.wait();
  CHECK(ended.code == 0);
  test::expect(ended.err == "cannot add a rank: [launch] a rank can join a job with --survive\n",
               "{}", ended.err);
}

TEST_CASE("survive: a program's own error ends the job, once") {
  const Ended ended = test::run(command({"--ranks", "3", "--survive", "--lr", "1e30"}));
  CHECK(ended.code == 1);
  test::expect(test::contains(ended.err, "the training has diverged"), "{}", ended.err);
  test::expect(!test::contains(ended.err, "go on"), "{}", ended.err);
}

TEST_CASE("survive: the last rank's end is the job's; exit codes are no losses") {
  const Ended all = test::run(test::launched(2, "kill -9 $$", {"--survive"}));
  CHECK(all.code == 1);
  test::expect(test::contains(all.err, "was killed by SIGKILL; 1 rank goes on"), "{}", all.err);
  CHECK(test::run(test::launched(2, "[ $RANK = 1 ] && exit 3; sleep 9", {"--survive"})).code == 3);
  CHECK(test::run(test::launched(2, "[ $RANK = 0 ] || kill -9 $$", {"--survive"})).code == 0);
  CHECK(test::run(test::launched(2, "[ $RANK = 0 ] || kill -9 $$")).code == 1);
}

TEST_CASE("survive: what would be lost with a rank is refused") {
  const std::pair<Words, const char*> refused[] = {
      {{"--shard-optimizer"}, "--survive and --shard-optimizer"},
      {{"--transport", "threads"}, "--survive and --transport threads"},
      {{"--comm", "nccl"}, "--survive and --comm nccl"},
      {{"--respawn", "-1"}, "--respawn"},
      {{"--lanes", "0"}, "--survive needs --lanes"}};
  for (const auto& [options, text] : refused) {
    Words words = {LOCKSTEP_BIN_DIR "/train_mlp", "--survive"};
    if (options[0] != "--lanes") words.insert(words.end(), {"--lanes", "8"});
    words.insert(words.end(), options.begin(), options.end());
    const Ended ended = test::run(words);
    CHECK(ended.code == 2);
    test::expect(test::contains(ended.err, text), "{}", ended.err);
  }
}
