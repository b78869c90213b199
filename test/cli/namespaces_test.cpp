// Two machines on one: network namespaces, each with a host name and an address of its own, joined
// by a cable (veth). Making them takes root and iproute2; without, these tests say so and pass.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include "cli/nodes.h"
#include "lockstep/dist/mpi/mpi.h"

using namespace lockstep::test;

namespace {

/// 10.213.0.1 and 10.213.0.2. They go with the test.
class TwoMachines {
 public:
  TwoMachines() {
    for (const int node : {0, 1}) make(fmt::format("ip netns add {}", name(node)));
    make(fmt::format("ip link add eth0 netns {} type veth peer name eth0 netns {}", name(0),
                     name(1)));
    for (const int node : {0, 1}) {
      make(fmt::format("ip -n {} address add {}/24 dev eth0", name(node), address(node)));
      for (const char* link : {"lo", "eth0"})
        make(fmt::format("ip -n {} link set {} up", name(node), link));
    }
    if (problem_.empty()) make(fmt::format("ip netns exec {} unshare --uts true", name(0)));
  }
  ~TwoMachines() {
    for (const int node : {0, 1})
      run({"sh", "-c", fmt::format("ip netns delete {} 2> /dev/null", name(node))});
  }
  TwoMachines(const TwoMachines&) = delete;
  TwoMachines& operator=(const TwoMachines&) = delete;

  /// Why they could not be made; empty if they were.
  const std::string& problem() const { return problem_; }
  std::string name(int node) const { return fmt::format("lockstep-{}-{}", getpid(), node); }
  std::string address(int node) const { return fmt::format("10.213.0.{}", node + 1); }

  /// `command` as it is to be started to run there.
  std::vector<std::string> on(int node, const std::vector<std::string>& command) const {
    std::vector<std::string> result{
        "ip",       "netns",   "exec",
        name(node), "unshare", "--uts",
        "sh",       "-c",      fmt::format("hostname {}; exec \"$@\"", name(node)),
        "sh"};
    result.insert(result.end(), command.begin(), command.end());
    return result;
  }

 private:
  void make(const std::string& command) {
    if (!problem_.empty()) return;
    const Ended ended = run({"sh", "-c", command});
    if (ended.code != 0) problem_ = fmt::format("'{}' failed: {}", command, ended.err);
  }
  std::string problem_;
};

/// False, and a word on why, where there cannot be two machines.
bool possible(const TwoMachines& machines) {
  if (!machines.problem().empty()) MESSAGE("skipped: ", machines.problem());
  return machines.problem().empty();
}

/// Both nodes' launchers, two ranks each.
std::vector<Ended> launch_on(const TwoMachines& machines, const std::vector<std::string>& program,
                             const std::vector<std::vector<std::string>>& options = {{}, {}}) {
  const std::string rendezvous = machines.address(0) + ":29400";
  Process first(machines.on(0, node_command(2, 2, 0, rendezvous, program, options[0])));
  Process second(machines.on(1, node_command(2, 2, 1, rendezvous, program, options[1])));
  std::vector<Ended> ended{first.wait()};
  ended.push_back(second.wait());
  return ended;
}

void check_good(const std::vector<Ended>& all) {
  for (const Ended& ended : all) {
    CAPTURE(ended.err);
    REQUIRE(ended.code == 0);
  }
}

}  // namespace

TEST_CASE("namespaces: training on two machines is training on one" * doctest::test_suite("slow")) {
  const TwoMachines machines;
  if (!possible(machines)) return;
  struct Case {
    std::vector<std::string> options, options_of_one;
  };
  const std::vector<std::string> direct{"--comm", "direct"};
  for (const Case& one : {Case{{"--transport", "tcp"}, {}}, Case{{"--comm", "hierarchical"}, {}},
                          Case{direct, direct}}) {
    const auto& [options, options_of_one] = one;
    CAPTURE(fmt::to_string(fmt::join(one.options, " ")));
    const TemporaryFolder folder;
    check_good(launch_on(machines, training(folder / "summary.json", options)));
    check_same_training(folder / "summary.json", 4, options_of_one);
  }
}

TEST_CASE("namespaces: ranks meet at the address that led to the rendezvous, or at --interface") {
  const TwoMachines machines;
  if (!possible(machines)) return;
  const std::string secret = "--secret-file";
  const TemporaryFolder folder;
  {
    std::ofstream(folder / "secret") << std::string(32, 's');
    REQUIRE(chmod((folder / "secret").c_str(), 0600) == 0);
  }
  const std::vector<std::string> say{"sh", "-c", "echo $LOCKSTEP_RENDEZVOUS $LOCKSTEP_INTERFACE."};
  const auto ended =
      launch_on(machines, say,
                {{secret, folder / "secret"}, {secret, folder / "secret", "--interface", "eth0"}});
  check_good(ended);
  CHECK(count(ended[0].out, machines.address(0) + ":") == 2);
  CHECK(count(ended[0].out, " .\n") == 2);
  CHECK(count(ended[1].out, machines.address(0) + ":") == 2);
  CHECK(count(ended[1].out, " eth0.\n") == 2);
}

TEST_CASE("namespaces: loopback is refused between machines, and what there is is listed") {
  const TwoMachines machines;
  if (!possible(machines)) return;
  const auto program = training("/dev/null", {"--transport", "tcp"});
  for (const Ended& ended : launch_on(machines, program, {{"--interface", "lo"}, {}})) {
    CHECK(ended.code != 0);
    CHECK(contains(ended.err, "--interface lo is 127.0.0.1 on node 0"));
    CHECK(contains(ended.err, "lo 127.0.0.1, eth0 10.213.0.1"));
  }
  for (const Ended& ended : launch_on(machines, program, {{}, {"--interface", "lo"}})) {
    CHECK(ended.code != 0);
    CHECK(contains(ended.err, "127.0.0.1, a loopback address"));
    CHECK(contains(ended.err, "--interface"));
    CHECK(contains(ended.err, "eth0 10.213.0.2"));
  }
}

// Each side loses the other. Only that of node 0 may train on.
TEST_CASE("namespaces: when the network is cut one side goes on, with the bits of a whole run") {
  const TwoMachines machines;
  if (!possible(machines)) return;
  const TemporaryFolder folder;
  const std::vector<std::string> lanes = {"--lanes", "8", "--batch", "64"};
  const auto train = [&](const std::string& name, std::vector<std::string> options) {
    options.insert(options.end(), lanes.begin(), lanes.end());
    return training(folder / name, options, "60");
  };
  check_good({run(train("whole", {"--ranks", "1"}))});
  const std::string rendezvous = machines.address(0) + ":29400";
  const auto start = [&](int node) {
    return std::make_unique<Process>(machines.on(
        node, node_command(2, 2, node, rendezvous,
                           train(fmt::format("{}", node), {"--survive", "--timeout", "2"}),
                           {"--survive", "--timeout", "30"})));
  };
  const auto first = start(0), second = start(1);
  while (!contains(first->err(), " training and ") && !first->try_wait()) usleep(1000);
  usleep(200'000);
  check_good({run({"ip", "-n", machines.name(1), "link", "set", "eth0", "down"})});
  const Ended goes_on = first->wait(), ends = second->wait();
  CAPTURE(goes_on.err);
  CAPTURE(ends.err);
  REQUIRE(goes_on.code == 0);
  CHECK(ends.code == 1);
  CHECK(contains(goes_on.err,
                 "node 1 (ranks 2, 3) is lost: its launcher has told nothing for 2.5 s; 2 ranks "
                 "go on"));
  std::ifstream whole(folder / "whole"), part(folder / "0");
  CHECK(nlohmann::json::parse(part)["parameter_digest"] ==
        nlohmann::json::parse(whole)["parameter_digest"]);
  CHECK_FALSE(std::filesystem::exists(folder / "1"));
}

TEST_CASE("namespaces: with torchrun's variables" * doctest::test_suite("slow")) {
  const TwoMachines machines;
  if (!possible(machines)) return;
  const TemporaryFolder folder;
  std::vector<std::unique_ptr<Process>> ranks;
  for (int rank = 0; rank < 4; ++rank)
    ranks.push_back(std::make_unique<Process>(
        machines.on(rank / 2, training(folder / "summary.json", {})),
        std::vector<std::string>{
            fmt::format("RANK={}", rank), fmt::format("LOCAL_RANK={}", rank % 2), "WORLD_SIZE=4",
            "LOCAL_WORLD_SIZE=2", fmt::format("GROUP_RANK={}", rank / 2),
            "MASTER_ADDR=" + machines.address(0), "MASTER_PORT=29500", "TORCHELASTIC_RUN_ID=none",
            "TORCHELASTIC_RESTART_COUNT=0", "OMP_NUM_THREADS=1"}));
  std::vector<Ended> all;
  for (const auto& rank : ranks) all.push_back(rank->wait());
  check_good(all);
  check_same_training(folder / "summary.json", 4, {});
}

TEST_CASE("namespaces: under mpirun" * doctest::test_suite("slow")) {
  if (run({"sh", "-c", "command -v mpirun"}).code != 0) {
    MESSAGE("skipped: there is no mpirun");
    return;
  }
  const TwoMachines machines;
  if (!possible(machines)) return;
  const TemporaryFolder folder;
  // What mpirun calls instead of ssh: agent HOST COMMAND...
  const std::string agent = folder / "agent";
  std::ofstream(agent) << "#!/bin/sh\nhost=$1\nshift\ncase $host in\n"
                       << machines.address(0) << ") host=" << machines.name(0) << ";;\n"
                       << machines.address(1) << ") host=" << machines.name(1) << ";;\nesac\n"
                       << "exec ip netns exec $host unshare --uts sh -c \"hostname $host; $*\"\n";
  REQUIRE(chmod(agent.c_str(), 0700) == 0);
  const std::vector<std::string> command{
      "mpirun",
      "--allow-run-as-root",
      "--oversubscribe",
      "--mca",
      "plm_rsh_agent",
      agent,
      "-H",
      fmt::format("{}:2,{}:2", machines.address(0), machines.address(1)),
      "-n",
      "4",
      "-x",
      "OMP_NUM_THREADS=1",
      "-x",
      fmt::format("LOCKSTEP_RENDEZVOUS={}:29500", machines.address(0))};
  const auto with = [&](const std::vector<std::string>& options) {
    std::vector<std::string> all = command;
    for (const std::string& argument : training(folder / "summary.json", options))
      all.push_back(argument);
    check_good({run(machines.on(0, all))});
    check_same_training(folder / "summary.json", 4, {});
  };
  with({});
  if (lockstep::dist::mpi_available()) with({"--comm", "mpi"});  // MPI's own TCP between them
}
