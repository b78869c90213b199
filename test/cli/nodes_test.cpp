// Several machines, here as several launchers on one: one job, one end, one message. With addresses
// of their own: namespaces_test.cpp.

#include "cli/nodes.h"

#include <doctest/doctest.h>
#include <fmt/ranges.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>

#include "support/free_address.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// The launchers of a job, one for each element of `ranks`.
struct Launchers {
  Launchers(const std::vector<int>& ranks, const std::vector<std::string>& program,
            const std::vector<std::string>& options = {}) {
    const std::string address = free_address();
    for (std::size_t n = 0; n < ranks.size(); ++n)
      nodes.push_back(
          std::make_unique<Process>(node_command(ranks[n], static_cast<int>(ranks.size()),
                                                 static_cast<int>(n), address, program, options)));
  }
  std::vector<Ended> wait() {
    std::vector<Ended> ended;
    for (const auto& node : nodes) ended.push_back(node->wait());
    return ended;
  }
  /// How all of them must end.
  void expect(int code, const std::string& message) {
    for (const Ended& ended : wait()) {
      CHECK(ended.code == code);
      CHECK(ended.err == message);
    }
    for (const auto& node : nodes) CHECK(node->family().empty());
  }
  std::vector<std::unique_ptr<Process>> nodes;
};

std::vector<std::string> shell(const std::string& script) { return {"sh", "-c", script}; }

/// The process of that rank, 0 where it has not begun.
pid_t find_rank(const Process& node, int rank) {
  for (const pid_t process : node.family()) {
    std::ifstream file(fmt::format("/proc/{}/environ", process));
    const std::string environment = '\0' + std::string{std::istreambuf_iterator<char>(file), {}};
    if (contains(environment, '\0' + fmt::format("RANK={}", rank) + '\0')) return process;
  }
  return 0;
}

pid_t rank_of(const Process& node, int rank) {
  const pid_t process = find_rank(node, rank);
  if (process == 0) FAIL("there is no rank ", rank);
  return process;
}

/// The inodes of sockets that listen for TCP on this machine.
std::vector<std::string> listening_inodes() {
  std::vector<std::string> inodes;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream lines(table);
    std::string line;
    std::getline(lines, line);  // the heading
    while (std::getline(lines, line)) {
      std::istringstream words(line);
      std::vector<std::string> word(10);
      for (std::string& w : word) words >> w;
      if (word[3] == "0A") inodes.push_back(fmt::format("socket:[{}]", word[9]));
    }
  }
  return inodes;
}

/// How many of them these processes have open.
int listening(const std::vector<pid_t>& processes) {
  const std::vector<std::string> inodes = listening_inodes();
  int count = 0;
  for (const pid_t process : processes)
    for (const auto& file :
         std::filesystem::directory_iterator(fmt::format("/proc/{}/fd", process))) {
      std::error_code ended;
      const std::string target = std::filesystem::read_symlink(file, ended);
      if (std::ranges::count(inodes, target) > 0) ++count;
    }
  return count;
}

/// Others use /dev/shm, too.
std::set<std::string> ours_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator(folder))
    if (contains(file.path().string(), "lockstep")) names.insert(file.path());
  return names;
}

}  // namespace

TEST_CASE("nodes: nobody listens once all are there, and nothing is left of a job that is killed") {
  const std::set<std::string> memory_before = ours_in("/dev/shm");
  Launchers waiting({1, 1},
                    shell("[ $RANK = 0 ] || exec sleep 1000; exec " + endless_training()[0]));
  // The control: rank 0 waits for rank 1. (The launchers listen, too, but end that before.)
  const auto waits = [&](pid_t rank) { return rank != 0 && listening({rank}) > 0; };
  bool rank_waits = false;
  for (int k = 0; k < 3000 && !rank_waits; ++k, usleep(10000))
    rank_waits = waits(find_rank(*waiting.nodes[0], 0));
  CHECK(rank_waits);
  Launchers job({2, 1}, endless_training());
  wait_for_training(*job.nodes[0]);
  for (const auto& node : job.nodes) CHECK(listening(node->family()) == 0);
  for (Launchers* launchers : {&waiting, &job}) {
    kill(launchers->nodes[1]->id(), SIGKILL);
    launchers->wait();
    for (const auto& node : launchers->nodes) node->wait_for_empty_family();
  }
  CHECK(ours_in("/dev/shm") == memory_before);
}

TEST_CASE("nodes: what ranks find") {
  Launchers job({2, 1},
                shell("echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE "
                      "$GROUP_RANK/$GROUP_WORLD_SIZE $MASTER_ADDR; echo job $LOCKSTEP_JOB "
                      "$LOCKSTEP_RENDEZVOUS $MASTER_PORT $LOCKSTEP_INTERFACE $(sha256sum < "
                      "/proc/self/fd/$LOCKSTEP_TOKEN_FD)"),
                {"--interface", "127.0.0.1"});
  const std::vector<Ended> ended = job.wait();
  std::string out;
  for (const Ended& node : ended) {
    CHECK(node.code == 0);
    CHECK(node.err.empty());
    out += node.out;
  }
  for (const char* line :
       {"0/3 0/2 0/2 127.0.0.1\n", "1/3 1/2 0/2 127.0.0.1\n", "2/3 0/1 1/2 127.0.0.1\n"})
    CHECK(count(out, line) == 1);
  const std::size_t at = out.find("job ");
  REQUIRE(at != std::string::npos);
  CHECK(count(out, out.substr(at, out.find('\n', at) - at)) == 3);
  CHECK(contains(out, " 127.0.0.1 "));
}

TEST_CASE("nodes: training on two of them is training on one" * doctest::test_suite("slow")) {
  struct Case {
    std::vector<int> ranks;
    std::vector<std::string> options, options_of_one;
  };
  const std::vector<std::string> direct{"--comm", "direct"},
      direct_tcp{"--comm", "direct", "--transport", "tcp"};
  for (const Case& one :
       {Case{{2, 2}, {"--transport", "tcp"}, {}}, Case{{2, 1}, {"--transport", "tcp"}, {}},
        Case{{2, 2}, {}, {}}, Case{{1, 2}, direct, direct}, Case{{2, 2}, direct_tcp, direct},
        Case{{2, 2}, {"--comm", "hierarchical"}, {}}}) {
    const auto& [ranks, options, options_of_one] = one;
    CAPTURE(fmt::to_string(fmt::join(one.ranks, " + ")));
    CAPTURE(fmt::to_string(fmt::join(one.options, " ")));
    const TemporaryFolder folder;
    Launchers job(ranks, training(folder / "summary.json", options));
    for (const Ended& ended : job.wait()) {
      CAPTURE(ended.err);
      REQUIRE(ended.code == 0);
    }
    check_same_training(folder / "summary.json", ranks[0] + ranks[1], options_of_one);
  }
}

TEST_CASE("nodes: --prefix counts all ranks") {
  Launchers job({1, 1}, shell("echo here"), {"--prefix"});
  const std::vector<Ended> ended = job.wait();
  CHECK(ended[0].out == "[0] here\n");
  CHECK(ended[1].out == "[1] here\n");
}

TEST_CASE("nodes: a failure on one ends all, with one message and one code" *
          doctest::test_suite("slow")) {
  SUBCASE("a code") {
    Launchers({2, 2}, shell("[ $RANK = 3 ] && exit 7; exec sleep 1000"))
        .expect(7, "error: rank 3 on node 1 failed with exit code 7\n");
  }
  SUBCASE("a signal") {
    Launchers({1, 2}, shell("[ $RANK = 0 ] && kill -9 $$; exec sleep 1000"))
        .expect(1,
                "error: rank 0 on node 0 was killed by signal 9 (Killed): perhaps out of memory\n");
  }
  SUBCASE("after the others have succeeded") {
    Launchers({1, 1, 1}, shell("[ $RANK = 1 ] || exit 0; sleep 0.3; exit 5"))
        .expect(5, "error: rank 1 on node 1 failed with exit code 5\n");
  }
  SUBCASE("the cause, not a consequence that came first") {
    const std::string script = "if [ $RANK = 0 ]; then " + tells_failure(true, "rank 1 is gone") +
                               "else sleep 0.3; " + tells_failure(false, "no such file") +
                               "fi; exit 2";
    Launchers({1, 1}, shell(script))
        .expect(2, "error: no such file (reported by rank 1 on node 1)\n");
  }
}

TEST_CASE("nodes: the stderr of a node's first rank is held back, and in the report of all nodes") {
  Launchers({1, 2}, shell("[ $RANK = 1 ] || exec sleep 1000; echo 'what went wrong' >&2; exit 7"))
      .expect(7,
              "error: rank 1 on node 1 failed with exit code 7; the end of its stderr:\n"
              "  what went wrong\n");
}

TEST_CASE("nodes: a rank is killed while they train") {
  for (const int victim : {0, 3}) {
    CAPTURE(victim);
    Launchers job({2, 2}, endless_training());
    wait_for_training(*job.nodes[0]);
    kill(rank_of(*job.nodes[static_cast<std::size_t>(victim / 2)], victim), SIGKILL);
    for (const Ended& ended : job.wait()) {
      CHECK(ended.code == 1);
      CHECK(contains(ended.err, fmt::format("error: rank {} on node {} was killed by signal 9",
                                            victim, victim / 2)));
    }
  }
}

TEST_CASE("nodes: a launcher is killed while they train") {
  for (const std::size_t victim : {0, 1}) {
    CAPTURE(victim);
    Launchers job({2, 2}, endless_training());
    wait_for_training(*job.nodes[0]);
    kill(job.nodes[victim]->id(), SIGKILL);
    const std::vector<Ended> ended = job.wait();
    CHECK(ended[victim].signal == SIGKILL);
    CHECK(ended[1 - victim].code == 1);
    CHECK(contains(
        ended[1 - victim].err,
        fmt::format("error: node {} (ranks {} to {}) is lost: the connection with its launcher has "
                    "ended",
                    victim, 2 * victim, 2 * victim + 1)));
    for (const auto& node : job.nodes) node->wait_for_empty_family();
  }
}

TEST_CASE("nodes: a launcher is stopped while ranks work" * doctest::test_suite("slow")) {
  for (const std::size_t victim : {0, 1}) {
    CAPTURE(victim);
    Launchers job({1, 2}, shell("echo ready; exec sleep 1000"), {"--timeout", "3"});
    for (const auto& node : job.nodes) node->wait_for_output("ready");
    kill(job.nodes[victim]->id(), SIGSTOP);
    const std::string line =
        fmt::format("error: node {} ({}) is lost: its launcher has told nothing for 3 s\n", victim,
                    victim == 0 ? "rank 0" : "ranks 1 to 2");
    const Ended other = job.nodes[1 - victim]->wait();
    CHECK(other.code == 1);
    CHECK(other.err == line);
    CHECK(job.nodes[1 - victim]->family().empty());
    kill(job.nodes[victim]->id(), SIGCONT);
    CHECK(job.nodes[victim]->wait().code == 1);  // it finds the other gone, or its message
    job.nodes[victim]->wait_for_empty_family();
  }
}

TEST_CASE("nodes: launchers that are stopped together go on" * doctest::test_suite("slow")) {
  Launchers job({1, 1}, shell("echo ready; sleep 9"), {"--timeout", "4"});
  for (const auto& node : job.nodes) node->wait_for_output("ready");
  for (const auto& node : job.nodes) kill(node->id(), SIGSTOP);
  sleep(6);
  for (const auto& node : job.nodes) kill(node->id(), SIGCONT);
  job.expect(0, "");
}

TEST_CASE("nodes: replicas that differ between nodes alone fail the job") {
  const std::string leave = "if [ $GROUP_RANK = 0 ]; then " + leaves_replica(1, 5) + "else " +
                            leaves_replica(1, 6) + "fi";
  Launchers job({2, 1}, shell(leave));
  for (const Ended& ended : job.wait()) {
    CHECK(ended.code == 1);
    CHECK(ended.err.starts_with("error: rank 2 ended with another replica than ranks 0, 1: "));
  }
}

TEST_CASE("nodes: a signal to one launcher stops all") {
  Launchers job({1, 1}, shell("echo ready; exec sleep 1000"));
  for (const auto& node : job.nodes) node->wait_for_output("ready");
  kill(job.nodes[1]->id(), SIGINT);
  job.expect(130, "error: node 1 was stopped by signal 2 (Interrupt)\n");
}

TEST_CASE("nodes: a signal to a launcher whose ranks have ended") {
  Launchers job({1, 1}, shell("echo ready $RANK; [ $RANK = 0 ] || exec sleep 1000"));
  job.nodes[0]->wait_for_output("ready 0");
  job.nodes[1]->wait_for_output("ready 1");
  while (job.nodes[0]->family().size() > 2) {  // launcher and guardian
  }
  kill(job.nodes[0]->id(), SIGINT);
  job.expect(130, "error: node 0 was stopped by signal 2 (Interrupt)\n");
}

TEST_CASE("nodes: a program that one of them cannot start") {
  const std::string address = free_address();
  Process first(node_command(1, 2, 0, address, {"sleep", "1000"}));
  Process second(node_command(1, 2, 1, address, {"no-such-program"}));
  const std::string why = "cannot start 'no-such-program': No such file or directory\n";
  CHECK(second.wait().err == "error: " + why);
  const Ended ended = first.wait();
  CHECK(ended.code == 1);
  CHECK(ended.err == "error: node 1: " + why);
}

TEST_CASE("nodes: a node that never comes") {
  const std::string address = free_address();
  const Ended alone = run(node_command(1, 3, 0, address, {"true"}, {"--timeout", "0.2"}));
  CHECK(alone.code == 1);
  CHECK(contains(alone.err, "after 0.2 s at " + address + " nodes 1, 2 are missing"));
  CHECK(lines_of(alone.err).size() == 1);
  CHECK(alone.err.starts_with("error: ["));  // a node that is missing is no rank
  const Ended other = run(node_command(1, 2, 1, address, {"true"}, {"--timeout", "0.2"}));
  CHECK(other.code == 1);
  CHECK(contains(other.err, "node 1 did not find node 0 at " + address));
}

TEST_CASE("nodes: bad usage is one line and code 2") {
  for (const std::vector<std::string>& options : std::vector<std::vector<std::string>>{
           {"--nnodes", "2"},
           {"--nnodes", "2", "--node-rank", "0"},
           {"--nnodes", "2", "--node-rank", "2", "--rendezvous", "127.0.0.1:1"},
           {"--nnodes", "2", "--node-rank", "-1", "--rendezvous", "127.0.0.1:1"},
           {"--nnodes", "0"},
           {"--node-rank", "1"},
           {"--nnodes", "2", "--node-rank", "1", "--rendezvous", "nowhere"},
           {"--nnodes", "2", "--node-rank", "1", "--rendezvous", "127.0.0.1:1", "--timeout", "0"},
           {"--nnodes", "2", "--node-rank", "1", "--rendezvous", "127.0.0.1:1", "--interface",
            "nothing0"}}) {
    const Ended ended = run(launched(1, "true", options));
    CAPTURE(ended.err);
    CHECK(ended.code == 2);
    CHECK(ended.out.empty());
    CHECK(lines_of(ended.err).size() == 1);
  }
}
