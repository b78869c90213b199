// A job on several machines that goes on without ranks and without machines, here as several
// launchers on one. With a network that is cut: test/cli/namespaces_test.cpp.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <random>

#include "cli/nodes.h"
#include "faults/survivors.h"
#include "support/drill.h"
#include "support/forked_ranks.h"

using namespace lockstep::test;

namespace {

/// `train --survive` on nodes with so many ranks each.
struct JobOnNodes {
  explicit JobOnNodes(const std::vector<int>& ranks, const Words& run_options = {},
                      const char* epochs = "60")
      : JobOnNodes(ranks, run_options, training(epochs)) {}
  /// Of another program, which gets the name of a file.
  JobOnNodes(const std::vector<int>& ranks, const Words& run_options, Words program) {
    const std::string address = free_address();
    program.push_back(folder / "json");
    Words options = {"--survive", "--timeout", "20"};
    options.insert(options.end(), run_options.begin(), run_options.end());
    for (std::size_t n = 0; n < ranks.size(); ++n)
      nodes.push_back(
          std::make_unique<Process>(node_command(ranks[n], static_cast<int>(ranks.size()),
                                                 static_cast<int>(n), address, program, options),
                                    Words{"LD_PRELOAD=" LOCKSTEP_HANGS}));
  }
  ~JobOnNodes() {  // what was stopped would never end
    for (std::size_t n = 0; n < nodes.size(); ++n) signal_node(n, SIGKILL);
  }

  static Words training(const char* epochs) {
    return command({"--survive", "--timeout", "2", "--json"}, epochs);
  }
  bool alive(std::size_t n) { return !(ended[n] || (ended[n] = nodes[n]->try_wait())); }
  void signal_node(std::size_t n, int number) {
    if (!alive(n)) return;
    for (const pid_t rank : ranks_of(nodes[n]->id())) ::kill(rank, number);
    ::kill(nodes[n]->id(), number);
  }
  /// Waits until node `n` has written it.
  void await(std::size_t n, const std::string& text) {
    while (!contains(nodes[n]->err(), text) && alive(n)) ::usleep(1000);
    expect(contains(nodes[n]->err(), text), "node {} has not said '{}': {}", n, text,
           nodes[n]->err());
  }
  /// Until the launchers have met; without `early`, until the ranks have as well.
  void await_ranks(bool early) {
    if (!early) return await(0, " training and ");
    for (std::size_t n = 0; n < nodes.size(); ++n)
      while (ranks_of(nodes[n]->id()).empty() && alive(n)) ::usleep(1000);
  }
  const Ended& wait(std::size_t n) {
    if (alive(n)) ended[n] = nodes[n]->wait();
    return *ended[n];
  }
  /// Lets a rank loop (support/hangs.cpp).
  void let_loop(pid_t rank) {
    looping.push_back(rank);
    ::kill(rank, SIGUSR2);
  }
  /// Until node 0 has ended. Looping ranks for which no other one waits, because all loop, or whose
  /// World has ended, go on if nobody has ended them for longer than it takes to find them.
  void let_forgotten_go_on() {
    using Clock = std::chrono::steady_clock;
    for (Clock::time_point seen = Clock::now(); alive(0); ::usleep(20'000)) {
      bool all = true;
      for (std::size_t n = 0; n < nodes.size(); ++n)
        for (const pid_t rank : alive(n) ? ranks_of(nodes[n]->id()) : std::vector<pid_t>{})
          all &= state_of(rank) == 'T' || std::ranges::count(looping, rank) > 0;
      if (!all) seen = Clock::now();
      if (Clock::now() - seen < std::chrono::seconds(8)) continue;
      for (const pid_t rank : looping) ::kill(rank, SIGUSR2);
      looping.clear();
    }
  }
  /// Waits for the end of all. No launcher may take much of a core: it waits for events.
  void wait_for_all() {
    std::vector<LauncherLoad> loads;
    for (const auto& node : nodes) loads.emplace_back(node->id());
    for (std::size_t n = 0; n < nodes.size(); ++n)
      for (; alive(n); ::usleep(10'000))
        for (LauncherLoad& load : loads) load.look();
    for (std::size_t n = 0; n < nodes.size(); ++n)
      expect(loads[n].share() < 0.05, "the launcher of node {} takes {:.0f} % of a core", n,
             loads[n].share() * 100);
  }
  /// The job has succeeded, with the bits of the undisturbed run, as node 0 sees it.
  void check_success() {
    expect(wait(0).code == 0, "{}", ended[0]->err);
    expect(json_in(folder / "json").at("parameter_digest") == whole().at("parameter_digest"),
           "other bits: {}", ended[0]->err);
  }

  TemporaryFolder folder;
  std::vector<std::unique_ptr<Process>> nodes{};
  std::vector<std::optional<Ended>> ended = std::vector<std::optional<Ended>>(4);
  std::vector<pid_t> looping{}, killed{};
  bool added = false;  // a rank
};

/// A random rank of a random node, or nothing if too few were left: one, or two of which one was
/// added, and may not have joined. One that was killed may live for a moment.
std::optional<pid_t> any_rank(JobOnNodes& job, std::mt19937_64& random) {
  std::vector<pid_t> all;
  for (std::size_t n = 0; n < job.nodes.size(); ++n)
    if (job.alive(n))
      for (const pid_t rank : ranks_of(job.nodes[n]->id()))
        if (state_of(rank) != 'T' && std::ranges::count(job.looping, rank) == 0 &&
            std::ranges::count(job.killed, rank) == 0)
          all.push_back(rank);
  if (all.size() < (job.added ? 3 : 2)) return {};
  return all[random() % all.size()];
}

}  // namespace

TEST_CASE("drill survivors-of-nodes: ranks, launchers and machines are lost at random moments") {
  drill(3, [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    JobOnNodes job({2, 1, 2});
    bool machine_lost = false;
    job.await_ranks(seed % 2 == 0);
    for (int i = 0; i < 3; ++i) {
      ::usleep(static_cast<useconds_t>(random() % 400'000));
      const std::uint64_t what = random() % 6;
      const auto rank = any_rank(job, random);
      const std::size_t node = 1 + random() % 2;
      if (what == 0 && !machine_lost) {
        machine_lost = true;
        ::kill(job.nodes[node]->id(), SIGKILL);
      } else if (what == 1 && !machine_lost) {
        machine_lost = true;
        job.signal_node(node, SIGSTOP);
      } else if (what == 2 && job.alive(node)) {
        ::kill(job.nodes[node]->id(), SIGUSR1);
        job.added = true;
      } else if (rank && what == 3) {
        job.let_loop(*rank);
      } else if (rank) {
        ::kill(*rank, SIGKILL);
        job.killed.push_back(*rank);
      }
    }
    job.let_forgotten_go_on();
    job.check_success();
  });
}

TEST_CASE("survive: rank 0's machine goes on without its ranks and tells who is lost") {
  JobOnNodes job({1, 2}, {}, "250");
  job.await(0, " training and ");
  ::kill(ranks_of(job.nodes[0]->id()).at(0), SIGKILL);
  job.await(0, "rank 0 was killed by SIGKILL; 2 ranks go on\n");
  job.await(1, " training and ");  // as rank 0's successor
  ::kill(job.nodes[1]->id(), SIGUSR1);
  job.await(0, "rank 3 joins; 3 ranks go on\n");
  ::kill(job.nodes[0]->id(), SIGUSR1);
  job.await(0, "cannot add a rank: the ranks of this node have ended\n");
  CHECK(job.wait(0).code == 0);
  CHECK(job.wait(1).code == 0);
  CHECK(json_in(job.folder / "json").at("members") == std::vector{1, 2, 3});
  CHECK(job.wait(0).out == "");
  CHECK(contains(job.wait(1).out, "ranks=3 replicas=identical"));
}

TEST_CASE("survive: a rank that is wanted before all launchers have met comes when they have") {
  const TemporaryFolder folder;
  const std::string address = free_address();
  const Words program = command({"--survive", "--json", folder / "json"}, "250");
  const auto node = [&](int n) {
    return node_command(1, 2, n, address, program, {"--survive", "--timeout", "20"});
  };
  Process first(node(0));
  const auto takes_signals = [&] {
    const std::string status = text_in_proc("/proc/" + std::to_string(first.id()) + "/status");
    const std::size_t at = status.find("SigBlk:");
    return at != status.npos && (std::stoull(status.substr(at + 7), nullptr, 16) & 1 << 9) != 0;
  };
  for (int i = 0; i < 5000 && !takes_signals(); ++i) ::usleep(1000);
  REQUIRE(takes_signals());
  ::kill(first.id(), SIGUSR1);
  Process second(node(1));
  const Ended ended = first.wait();
  CAPTURE(ended.err);
  CHECK(contains(ended.err, "rank 2 joins; 3 ranks go on\n"));
  CHECK(ended.code == 0);
  CHECK(second.wait().code == 0);
}

// The training lasts until the new rank has joined, however long that takes.
TEST_CASE("survive: a rank is replaced on its own machine, which has no other one") {
  JobOnNodes job({2, 1}, {"--respawn", "1"},
                 {LOCKSTEP_BIN_DIR "/survivor", "2:kill@step,3:join@step"});
  job.wait_for_all();
  INFO(job.wait(0).err);
  CHECK(contains(job.wait(0).err, "rank 2 was killed by SIGKILL; 2 ranks go on\nrank 3 joins; 3 "));
  CHECK(job.wait(0).code == 0);
  CHECK(job.wait(1).code == 0);
  CHECK(job.wait(0).out.ends_with(" of 0 1 3\n"));
}

// It must wait for events, not look for them.
TEST_CASE("survive: a launcher whose only rank was lost or replaced takes no core") {
  for (const char* replaced : {"0", "1"}) {
    JobOnNodes job({1, 1}, {"--respawn", replaced}, "100000");
    job.await(0, " training and ");
    ::kill(ranks_of(job.nodes[1]->id()).at(0), SIGKILL);
    job.await(0, *replaced == '1' ? "rank 2 joins; 2 ranks go on\n" : "; 1 rank goes on\n");
    ::usleep(1'200'000);  // a launcher with ended ranks waits a second for what they left
    std::vector<LauncherLoad> loads;
    for (const auto& node : job.nodes) loads.emplace_back(node->id());
    ::usleep(1'500'000);
    for (LauncherLoad& load : loads) {
      load.look();
      CHECK(load.share() < 0.05);
    }
  }
}

TEST_CASE("survive: a machine that stands still while others meet is lost") {
  JobOnNodes job({1, 2, 2}, {}, "250");
  job.await(0, " training and ");
  job.signal_node(1, SIGSTOP);  // the others learn of rank 3's end before they can miss these
  ::kill(ranks_of(job.nodes[2]->id()).at(0), SIGKILL);
  job.await(0, "rank 3 was killed by SIGKILL; 4 ranks go on\n");
  job.await(0,
            "node 1 (ranks 1, 2) is lost: its launcher has told nothing for 2.5 s; 2 ranks go "
            "on\n");
  job.signal_node(1, SIGCONT);
  CHECK(job.wait(0).code == 0);
  // It has been given up, and says so: what its launcher was told to do is no reason.
  const Ended& late = job.wait(1);
  CHECK(late.code == 1);
  expect(contains(late.err, "error: node 0 (rank 0) is lost: "), "{}", late.err);
}

TEST_CASE("survive: what comes to a launcher without ranks is no failure of the others") {
  JobOnNodes job({2, 1}, {}, "250");
  job.await(0, " training and ");
  ::kill(ranks_of(job.nodes[1]->id()).at(0), SIGKILL);
  job.await(0, "rank 2 was killed by SIGKILL; 2 ranks go on\n");
  ::kill(job.nodes[1]->id(), SIGTERM);
  CHECK(job.wait(1).code == 128 + SIGTERM);
  CHECK(job.wait(0).code == 0);
}

TEST_CASE("survive: a job that its user stops says so, whatever else is lost") {
  for (const std::size_t stopped : {0, 1}) {
    JobOnNodes job({1, 1, 1}, {}, "100000");
    job.await(0, " training and ");
    ::kill(ranks_of(job.nodes[2]->id()).at(0), SIGKILL);
    ::kill(job.nodes[stopped]->id(), SIGTERM);
    for (std::size_t n : {0, 1, 2}) CHECK(job.wait(n).code == 128 + SIGTERM);
    expect(contains(job.wait(0).err, fmt::format("node {} was stopped by signal 15", stopped)),
           "{}", job.wait(0).err);
  }
}

TEST_CASE("survive: a machine that is lost is named with its ranks; without node 0 all end") {
  JobOnNodes job({1, 2, 1}, {}, "100000");
  job.await(0, " training and ");
  ::kill(job.nodes[1]->id(), SIGKILL);
  job.await(0,
            "node 1 (ranks 1, 2) is lost: the connection with its launcher has ended; 2 ranks go "
            "on\n");
  ::kill(job.nodes[0]->id(), SIGKILL);
  const Ended& last = job.wait(2);
  CHECK(last.code == 1);
  expect(
      contains(last.err, "error: node 0 (rank 0) is lost: the connection with its launcher has "),
      "{}", last.err);
}

TEST_CASE("survive: the last machine's end is the job's, and a program's own error is") {
  const auto job = [](const std::string& script) {
    const std::string address = free_address();
    std::vector<std::unique_ptr<Process>> nodes;
    for (int n = 0; n < 2; ++n)
      nodes.push_back(std::make_unique<Process>(
          node_command(1, 2, n, address, {"sh", "-c", script}, {"--survive"})));
    return std::pair(nodes[0]->wait(), nodes[1]->wait());
  };
  for (const auto& [script, text] : {std::pair("kill -9 $$", "was killed by signal 9"),
                                     std::pair("[ $RANK = 1 ] && exit 3; sleep 9",
                                               "rank 1 on node 1 failed with exit code 3")}) {
    const auto [first, second] = job(script);
    CHECK(first.code != 0);
    CHECK(second.code == first.code);
    expect(contains(first.err, text), "{}", first.err);
    CHECK(first.err.ends_with(second.err));
  }
  for (const char* lost : {"0", "1"}) {
    const auto [first, second] = job(fmt::format("[ $RANK != {} ] || kill -9 $$", lost));
    CHECK(first.code == 0);
    CHECK(second.code == 0);
  }
}

TEST_CASE("survive: launchers that do not agree on it end with one line") {
  const std::string address = free_address();
  Process first(node_command(1, 2, 0, address, {"true"}, {"--survive"}));
  Process second(node_command(1, 2, 1, address, {"true"}, {"--survive", "--respawn", "2"}));
  for (Process* node : {&first, &second}) {
    const Ended ended = node->wait();
    CHECK(ended.code == 2);
    expect(contains(ended.err,
                    "[nodes] node 0 has --survive --respawn 0, node 1 has --survive --respawn 2: "
                    "it must be the same on all"),
           "{}", ended.err);
  }
}
