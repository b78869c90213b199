#include "lockstep/dist/rendezvous/environment.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <map>
#include <string>

#include "lockstep/core/error.h"
#include "support/capture_binding.h"
#include "support/text.h"

namespace lockstep::dist {
namespace {

using test::contains;
using Variables = std::map<std::string, std::string>;

std::optional<LaunchInfo> read(const Variables& variables) {
  return read_environment([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

Variables with(Variables variables, const Variables& changes) {
  for (const auto& [name, value] : changes) variables[name] = value;
  return variables;
}
Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

const Variables torchrun{{"RANK", "3"},
                         {"WORLD_SIZE", "4"},
                         {"LOCAL_RANK", "1"},
                         {"LOCAL_WORLD_SIZE", "2"},
                         {"GROUP_RANK", "1"},
                         {"MASTER_ADDR", "node7"},
                         {"MASTER_PORT", "29500"},
                         {"TORCHELASTIC_RUN_ID", "none"},
                         {"TORCHELASTIC_RESTART_COUNT", "2"}};

const Variables mpirun{{"OMPI_COMM_WORLD_RANK", "1"},       {"OMPI_COMM_WORLD_SIZE", "2"},
                       {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                       {"PMIX_NAMESPACE", "3456565249"},    {"PMIX_HOSTNAME", "node1"}};

const Variables srun{{"SLURM_PROCID", "5"},         {"SLURM_NTASKS", "7"},
                     {"SLURM_STEP_NUM_TASKS", "7"}, {"SLURM_LOCALID", "1"},
                     {"SLURM_NODEID", "2"},         {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"},
                     {"SLURM_JOB_ID", "812"},       {"SLURM_STEP_ID", "0"},
                     {"MASTER_ADDR", "n1"},         {"MASTER_PORT", "6000"}};

/// The message of the UsageError, which must come.
std::string error_of(const Variables& variables) {
  try {
    read(variables);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST_CASE("environment: started alone") {
  CHECK_FALSE(read({}).has_value());
  CHECK_FALSE(read({{"HOME", "/root"}, {"MASTER_ADDR", "x"}, {"LOCAL_RANK", "0"}}).has_value());
}

TEST_CASE("environment: a world of 1 set by hand needs no port, no address, no local rank") {
  for (const Variables& more :
       {Variables{}, Variables{{"LOCAL_RANK", "0"}}, Variables{{"LOCAL_WORLD_SIZE", "1"}},
        Variables{{"MASTER_ADDR", "node7"}}, Variables{{"MASTER_PORT", "29500"}}}) {
    const LaunchInfo launch = read(with({{"RANK", "0"}, {"WORLD_SIZE", "1"}}, more)).value();
    CHECK(launch.rank == 0);
    CHECK(launch.size == 1);
    CHECK(launch.local_rank == 0);
    CHECK(launch.local_size == 1);
    CHECK(launch.rendezvous == "");
  }
  const Variables two{{"RANK", "0"}, {"WORLD_SIZE", "2"}};
  CHECK(contains(error_of(two), "neither MASTER_PORT nor LOCKSTEP_RENDEZVOUS is"));
  CHECK(error_of({{"RANK", "1"}, {"WORLD_SIZE", "1"}}) ==
        "[environment] RANK=1 must be less than WORLD_SIZE=1");
  CHECK(error_of({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "2"}}) ==
        "[environment] LOCAL_RANK=2 must be less than LOCAL_WORLD_SIZE=1");
}

TEST_CASE("environment: torchrun") {
  const LaunchInfo launch = read(torchrun).value();
  CHECK(launch.rank == 3);
  CHECK(launch.size == 4);
  CHECK(launch.local_rank == 1);
  CHECK(launch.local_size == 2);
  CHECK(launch.launcher == "torchrun");
  CHECK(launch.job == "none:29500:2");
  CHECK_FALSE(launch.one_machine());
  CHECK(launch.node == "1");
  CHECK(launch.interface.empty());
  CHECK(launch.rendezvous == "node7:29501");  // 29500 belongs to torchrun's own rendezvous
  CHECK(launch.token_descriptor == -1);

  const LaunchInfo one =
      read(with(torchrun, {{"LOCAL_WORLD_SIZE", "4"}, {"LOCAL_RANK", "3"}})).value();
  CHECK(one.one_machine());
  CHECK(one.rendezvous.empty());
}

TEST_CASE("environment: lockstep-run") {
  const LaunchInfo launch = read({{"RANK", "0"},
                                  {"WORLD_SIZE", "2"},
                                  {"LOCAL_RANK", "0"},
                                  {"LOCAL_WORLD_SIZE", "2"},
                                  {"LOCKSTEP_JOB", "ab12"},
                                  {"LOCKSTEP_RENDEZVOUS", "unix:/tmp/x/rendezvous"},
                                  {"LOCKSTEP_TOKEN_FD", "7"}})
                                .value();
  CHECK(launch.launcher == "lockstep-run");
  CHECK(launch.job == "ab12");
  CHECK(launch.rendezvous == "unix:/tmp/x/rendezvous");
  CHECK(launch.token_descriptor == 7);
}

TEST_CASE("environment: mpirun") {
  const LaunchInfo launch = read(mpirun).value();
  CHECK(launch.rank == 1);
  CHECK(launch.size == 2);
  CHECK(launch.local_rank == 1);
  CHECK(launch.launcher == "mpirun");
  CHECK(launch.job == "3456565249");
  CHECK(launch.node == "node1");
  CHECK(read(without(mpirun, "PMIX_HOSTNAME"))->node.empty());
  CHECK(launch.rendezvous.empty());
  const Variables two_machines =
      with(mpirun, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}});
  CHECK(contains(error_of(two_machines), "LOCKSTEP_RENDEZVOUS=host:port"));
  CHECK(read(with(two_machines, {{"LOCKSTEP_RENDEZVOUS", "node1:7000"}}))->rendezvous ==
        "node1:7000");
}

TEST_CASE("environment: other mpiruns are known, and need a place to meet") {
  const Variables hydra{
      {"PMI_RANK", "2"}, {"PMI_SIZE", "3"}, {"MPI_LOCALRANKID", "2"}, {"MPI_LOCALNRANKS", "3"}};
  const Variables mvapich{{"MV2_COMM_WORLD_RANK", "2"},
                          {"MV2_COMM_WORLD_SIZE", "3"},
                          {"MV2_COMM_WORLD_LOCAL_RANK", "2"},
                          {"MV2_COMM_WORLD_LOCAL_SIZE", "3"}};
  for (const Variables& variables : {hydra, mvapich}) {
    // Without a place to meet, each rank would train alone.
    CHECK(contains(error_of(variables), "LOCKSTEP_RENDEZVOUS=host:port"));
    const LaunchInfo launch =
        read(with(variables, {{"LOCKSTEP_RENDEZVOUS", "n1:7000"}, {"HOSTNAME", "n1"}})).value();
    CHECK(launch.rank == 2);
    CHECK(launch.size == 3);
    CHECK(launch.local_rank == 2);
    CHECK(launch.local_size == 3);
    CHECK(launch.rendezvous == "n1:7000");
    CHECK(launch.node.empty());  // HOSTNAME may be another node's
    CHECK(read(with(variables, {{"MASTER_ADDR", "n1"}, {"MASTER_PORT", "7000"}}))->job ==
          "n1:7000");
  }
  CHECK(contains(error_of(without(hydra, "PMI_SIZE")), "PMI_SIZE is not set"));
  CHECK(contains(
      error_of(without(with(hydra, {{"LOCKSTEP_RENDEZVOUS", "n1:7000"}}), "MPI_LOCALNRANKS")),
      "MPI_LOCALNRANKS is not set"));
}

TEST_CASE("environment: srun") {
  const LaunchInfo launch = read(srun).value();
  CHECK(launch.rank == 5);
  CHECK(launch.size == 7);
  CHECK(launch.local_rank == 1);
  CHECK(launch.local_size == 2);
  CHECK(launch.launcher == "srun");
  CHECK(launch.job == "812.0");
  CHECK(launch.rendezvous == "n1:6001");
  CHECK(launch.node == "2");
  CHECK(read(with(srun, {{"SLURM_NODEID", "3"}, {"SLURM_LOCALID", "0"}, {"SLURM_PROCID", "6"}}))
            ->local_size == 1);
  CHECK(read(without(srun, "SLURM_STEP_NUM_TASKS"))->size == 7);

  SUBCASE("variables of a batch script or an allocation are not srun's") {
    CHECK_FALSE(read(without(srun, "SLURM_STEP_ID")).has_value());
    CHECK_FALSE(read(without(srun, "SLURM_PROCID")).has_value());
    CHECK_FALSE(read(with(srun, {{"SLURM_STEP_ID", "4294967291"}})).has_value());  // batch script
    CHECK_FALSE(read(with(srun, {{"SLURM_STEP_ID", "4294967290"}})).has_value());  // interactive
  }
  SUBCASE("bad lists") {
    for (const char* list : {"", "x", "2(x", "2(x)", "2(x3", "0", "2,,1", "-2", "2(x0)"}) {
      CAPTURE(list);
      CHECK_THROWS_AS(read(with(srun, {{"SLURM_STEP_TASKS_PER_NODE", list}})), UsageError);
    }
    CHECK(contains(error_of(with(srun, {{"SLURM_NODEID", "4"}})), "SLURM_NODEID=4"));
  }
}

TEST_CASE("environment: the innermost launcher wins") {
  CHECK(read(with(srun, mpirun))->launcher == "mpirun");
  CHECK(read(with(with(srun, mpirun), torchrun))->launcher == "torchrun");
}

TEST_CASE("environment: by hand") {
  const Variables hand{
      {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "2"}};
  CHECK(contains(error_of(hand), "MASTER_PORT"));
  const LaunchInfo launch = read(with(hand, {{"MASTER_ADDR", "a"}, {"MASTER_PORT", "5"}})).value();
  CHECK(launch.launcher == "environment");
  CHECK(launch.job == "a:5");
  CHECK(launch.node.empty());
}

TEST_CASE("environment: Kubeflow's four variables, without a local rank") {
  const Variables four{{"RANK", "1"},
                       {"WORLD_SIZE", "2"},
                       {"MASTER_ADDR", "job-master-0"},
                       {"MASTER_PORT", "23456"}};
  const LaunchInfo launch = read(four).value();
  CHECK(launch.rank == 1);
  CHECK(launch.size == 2);
  CHECK_FALSE(launch.local_known);  // until the ranks meet
  CHECK_FALSE(launch.one_machine());
  CHECK(launch.rendezvous == "job-master-0:23457");
  CHECK(read(with(four, {{"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}}))->local_known);
  // Half of what says which ranks share a machine is a mistake; so it is with real launchers.
  CHECK(contains(error_of(with(four, {{"LOCAL_RANK", "0"}})), "LOCAL_WORLD_SIZE is not set"));
  CHECK(contains(error_of(with(four, {{"LOCAL_WORLD_SIZE", "2"}})), "LOCAL_RANK is not set"));
  CHECK(contains(error_of(with(four, {{"LOCKSTEP_JOB", "x"}})), "LOCAL_RANK is not set"));
  CHECK(contains(error_of(with(four, {{"TORCHELASTIC_RUN_ID", "x"}})), "LOCAL_RANK is not set"));
  CHECK(contains(error_of(without(four, "MASTER_ADDR")), "MASTER_ADDR"));
}

TEST_CASE("environment: the interface, with any launcher") {
  for (const auto* launcher : {&torchrun, &mpirun, &srun})
    CHECK(read(with(*launcher, {{"LOCKSTEP_INTERFACE", "eth1"}}))->interface == "eth1");
}

TEST_CASE("environment: this process is on some machine") {
  ::setenv("RANK", "0", 1);
  for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}) ::setenv(name, "1", 1);
  ::setenv("LOCAL_RANK", "0", 1);
  ::setenv("MASTER_PORT", "5", 1);
  const std::optional<LaunchInfo> launch = read_environment();
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT"})
    ::unsetenv(name);
  std::array<char, 256> host{};
  REQUIRE(::gethostname(host.data(), host.size()) == 0);
  CHECK(launch.value().node == host.data());
}

TEST_CASE("environment: errors name variable and value") {
  for (const auto* names : {&torchrun, &mpirun}) {
    for (const auto& [name, value] : *names) {
      if (!contains(name, "RANK") && !contains(name, "SIZE")) continue;
      if (name == "GROUP_RANK") continue;
      CAPTURE_BINDING(name);
      CHECK(contains(error_of(without(*names, name)), name + " is not set"));
      for (const char* bad : {"", "x", "-1", "1x", " 1", "1.0", "99999999999999999999"}) {
        CAPTURE(bad);
        const std::string message = error_of(with(*names, {{name, bad}}));
        CHECK(contains(message, name));
        CHECK(contains(message, std::string("'") + bad + "'"));
      }
    }
  }
  CHECK(
      contains(error_of(with(torchrun, {{"RANK", "4"}})), "RANK=4 must be less than WORLD_SIZE=4"));
  CHECK(contains(error_of(with(torchrun, {{"LOCAL_RANK", "2"}})), "LOCAL_RANK=2"));
  CHECK(read(with(torchrun, {{"WORLD_SIZE", "4096"}}))->size == max_ranks);
  CHECK(contains(error_of(with(torchrun, {{"WORLD_SIZE", "4097"}})),
                 "WORLD_SIZE=4097: a world has at most 4096 ranks"));
  CHECK(contains(error_of(with(mpirun, {{"OMPI_COMM_WORLD_SIZE", "2147483647"}})), "2147483647"));
  CHECK(contains(error_of(with(srun, {{"SLURM_STEP_TASKS_PER_NODE", "1(x2147483647),1"}})),
                 "1(x2147483647),1"));
  CHECK(contains(error_of(with(torchrun, {{"LOCAL_WORLD_SIZE", "5"}})), "LOCAL_WORLD_SIZE=5"));
  CHECK(contains(error_of(with(torchrun, {{"RANK", "0"}})), "LOCAL_RANK=1"));
  CHECK(contains(error_of(with(torchrun, {{"WORLD_SIZE", "0"}})), "WORLD_SIZE=0"));
  CHECK(contains(error_of(with(torchrun, {{"MASTER_PORT", "65535"}})), "65535"));
  CHECK(contains(error_of(with(torchrun, {{"MASTER_PORT", "http"}})), "'http'"));
  CHECK(contains(error_of(without(torchrun, "MASTER_ADDR")), "MASTER_ADDR"));
  CHECK(contains(error_of(with(torchrun, {{"LOCKSTEP_TOKEN_FD", "abc"}})), "'abc'"));
  CHECK(contains(error_of(without(mpirun, "PMIX_NAMESPACE")), "PMIX_NAMESPACE"));
}

}  // namespace
}  // namespace lockstep::dist
