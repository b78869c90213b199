// `train` under launchers that are not ours: the real mpirun, where it is installed, and the
// variables that torchrun sets.

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>

#include "support/free_address.h"
#include "support/program.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

const std::string train_program = LOCKSTEP_BIN_DIR "/train_mlp";

void check_last_line(const std::string& out) {
  CHECK(count(out, "final test_accuracy=") == 1);
  CHECK(contains(out, " ranks=2 replicas=identical\n"));
}

}  // namespace

TEST_CASE("train: under mpirun") {
  if (run({"sh", "-c", "command -v mpirun"}).code != 0) {
    MESSAGE("skipped: there is no mpirun");
    return;
  }
  const Ended ended =
      run({"mpirun", "--oversubscribe", "-n", "2", train_program, "--epochs", "1"},
          {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "OMP_NUM_THREADS=1"});
  CAPTURE(ended.err);
  CHECK(ended.code == 0);
  check_last_line(ended.out);
}

TEST_CASE("lockstep-run: -np means -n, as mpirun's users write it") {
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"-np", "2"}, {"--np", "2"}, {"-np=2"}, {"--grace", "1", "-np", "2"}, {"-n", "2"}}) {
    std::vector<std::string> command{LOCKSTEP_BIN_DIR "/lockstep-run"};
    command.insert(command.end(), words.begin(), words.end());
    // What follows the program is the program's.
    command.insert(command.end(), {"sh", "-c", "echo $WORLD_SIZE $1", "-np", "-np"});
    const Ended ended = run(command);
    CAPTURE(ended.err);
    CHECK(ended.code == 0);
    CHECK(count(ended.out, "2 -np\n") == 2);
  }
  const Ended bad = run({LOCKSTEP_BIN_DIR "/lockstep-run", "-np", "x", "true"});
  CHECK(bad.code == 2);
  CHECK(contains(bad.err, "'x' is not a whole number"));
}

namespace {

/// Two ranks that are started by hand, with the variables that all launchers set and `more`.
void check_trains_by_hand(const std::function<std::vector<std::string>(const std::string&)>& more) {
  const int port = free_port();
  const auto start = [&](const std::string& rank) {
    std::vector<std::string> variables{"RANK=" + rank, "WORLD_SIZE=2", "MASTER_ADDR=" + own_host(),
                                       "MASTER_PORT=" + std::to_string(port), "OMP_NUM_THREADS=1"};
    for (const std::string& variable : more(rank)) variables.push_back(variable);
    return Process({train_program, "--epochs", "1"}, variables);
  };
  Process rank_0 = start("0"), rank_1 = start("1");
  const Ended first = rank_0.wait(), second = rank_1.wait();
  CAPTURE(first.err);
  CAPTURE(second.err);
  CHECK(first.code == 0);
  CHECK(second.code == 0);
  check_last_line(first.out);
  CHECK(second.out.empty());
}

}  // namespace

TEST_CASE("train: with Kubeflow's variables, which do not say who shares a machine") {
  check_trains_by_hand([](const std::string&) { return std::vector<std::string>{}; });
}

TEST_CASE("train: with torchrun's variables") {
  check_trains_by_hand([](const std::string& rank) {
    return std::vector<std::string>{"LOCAL_RANK=" + rank, "LOCAL_WORLD_SIZE=2", "GROUP_RANK=0",
                                    "TORCHELASTIC_RUN_ID=none", "TORCHELASTIC_RESTART_COUNT=0"};
  });
}
