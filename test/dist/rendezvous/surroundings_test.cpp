// What a process is given by who started it: which launcher counts, descriptors, folders.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>

#include "lockstep/core/error.h"
#include "lockstep/dist/rendezvous/surroundings/inherited.h"
#include "lockstep/dist/rendezvous/surroundings/nearest.h"
#include "lockstep/dist/rendezvous/surroundings/socket_folder.h"
#include "lockstep/lockstep.h"
#include "support/forked_ranks.h"

namespace lockstep::dist::surroundings_of_launchers {
namespace {

using test::contains;
using test::TemporaryFolder;
using Variables = std::map<std::string, std::string>;

Getenv getenv_of(const Variables& variables) {
  return [variables](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

Variables with(Variables variables, const Variables& changes) {
  for (const auto& [name, value] : changes) variables[name] = value;
  return variables;
}

Variables without(Variables variables, const std::vector<std::string>& names) {
  for (const std::string& name : names) variables.erase(name);
  return variables;
}

/// The message of the UsageError, which must come.
std::string error_of(const Variables& variables) {
  try {
    read_environment(getenv_of(variables));
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

const Variables mpirun{{"OMPI_COMM_WORLD_RANK", "1"},       {"OMPI_COMM_WORLD_SIZE", "2"},
                       {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                       {"PMIX_NAMESPACE", "345"},           {"PMIX_HOSTNAME", "node1"}};
const Variables mvapich{{"MV2_COMM_WORLD_RANK", "1"},
                        {"MV2_COMM_WORLD_SIZE", "2"},
                        {"MV2_COMM_WORLD_LOCAL_RANK", "1"},
                        {"MV2_COMM_WORLD_LOCAL_SIZE", "2"},
                        {"MASTER_PORT", "5"},
                        {"MASTER_ADDR", "a"}};
const Variables hydra{{"PMI_RANK", "1"},        {"PMI_SIZE", "2"},    {"MPI_LOCALRANKID", "1"},
                      {"MPI_LOCALNRANKS", "2"}, {"MASTER_PORT", "5"}, {"MASTER_ADDR", "a"}};
const Variables srun{{"SLURM_PROCID", "1"},  {"SLURM_STEP_NUM_TASKS", "2"},
                     {"SLURM_LOCALID", "1"}, {"SLURM_NODEID", "0"},
                     {"SLURM_JOB_ID", "8"},  {"SLURM_STEP_TASKS_PER_NODE", "2"},
                     {"SLURM_STEP_ID", "0"}};
const Variables torchrun{{"RANK", "0"},
                         {"WORLD_SIZE", "2"},
                         {"LOCAL_RANK", "0"},
                         {"LOCAL_WORLD_SIZE", "2"},
                         {"MASTER_ADDR", "a"},
                         {"MASTER_PORT", "5"},
                         {"TORCHELASTIC_RUN_ID", "none"},
                         {"TORCHELASTIC_RESTART_COUNT", "0"}};
const Variables by_hand = without(torchrun, {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"});

/// A rank of lockstep-run, which was itself started in `around`.
Variables launched_in(const Variables& around) {
  std::vector<std::pair<std::string, std::string>> set{{"RANK", "0"},
                                                       {"WORLD_SIZE", "3"},
                                                       {"LOCAL_RANK", "0"},
                                                       {"LOCAL_WORLD_SIZE", "3"},
                                                       {"MASTER_ADDR", "127.0.0.1"},
                                                       {"MASTER_PORT", "7"},
                                                       {"LOCKSTEP_JOB", "ab"},
                                                       {"LOCKSTEP_RENDEZVOUS", "unix:/x/y"},
                                                       {"LOCKSTEP_TOKEN_FD", "512"},
                                                       {"LOCKSTEP_SURVIVE_FD", "513"}};
  set.emplace_back("LOCKSTEP_STARTED", started_as(set, getenv_of(around)));
  Variables all = around;
  for (const auto& [name, value] : set) all[name] = value;
  return all;
}

TEST_CASE("surroundings: variables set by hand that make another world are an error") {
  for (const Variables& launcher : {mpirun, mvapich, hydra, srun}) {
    const std::string name = launcher.begin()->first;
    CAPTURE(name);
    const Variables alone{{"RANK", "0"}, {"WORLD_SIZE", "1"}};
    CHECK(contains(error_of(with(launcher, alone)), "RANK=0 of WORLD_SIZE=1 (set by hand)"));
    CHECK(contains(error_of(with(launcher, alone)), "=1 of "));
    CHECK(contains(error_of(with(launcher, by_hand)), "are two worlds"));  // another rank of two
    // The same, and a world of which the launcher has started a part: one process per machine.
    const Variables same = with(by_hand, {{"RANK", "1"}, {"LOCAL_RANK", "1"}});
    CHECK(read_environment(getenv_of(with(launcher, same)))->launcher == "environment");
    const Variables larger =
        with(by_hand, {{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}});
    CHECK(read_environment(getenv_of(with(launcher, larger)))->size == 4);
  }
  // In an allocation without srun there is no other world.
  CHECK(read_environment(
            getenv_of(with(without(srun, {"SLURM_STEP_ID"}), {{"RANK", "0"}, {"WORLD_SIZE", "1"}})))
            ->size == 1);
}

TEST_CASE("surroundings: a launcher inside another one's world, and worlds that cannot be so") {
  const Variables nine{{"OMPI_COMM_WORLD_SIZE", "9"}};
  CHECK(read_environment(getenv_of(with(mpirun, torchrun)))->launcher == "torchrun");
  CHECK(contains(error_of(with(with(mpirun, nine), torchrun)), "OMPI_COMM_WORLD_SIZE=9 (mpirun)"));
  CHECK(contains(error_of(with(hydra, {{"OMPI_COMM_WORLD_RANK", "0"},
                                       {"OMPI_COMM_WORLD_SIZE", "1"},
                                       {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                       {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                                       {"PMIX_NAMESPACE", "3"}})),
                 "PMI_SIZE=2"));
  // mpirun starts its daemons by srun: there may be more of them than ranks.
  CHECK(read_environment(getenv_of(with(mpirun, with(srun, {{"SLURM_STEP_NUM_TASKS", "7"}}))))
            ->launcher == "mpirun");
  const auto by_hydra = read_environment(getenv_of(with(srun, with(hydra, {{"PMI_SIZE", "4"}}))));
  CHECK(by_hydra->launcher == "mpirun");
  CHECK(by_hydra->size == 4);
  // With --mpi=pmi2 srun sets these, too.
  CHECK(read_environment(getenv_of(with(srun, {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}})))->launcher ==
        "srun");
}

TEST_CASE("surroundings: lockstep-run is the nearest whatever it was started in") {
  for (const Variables& around : {Variables{}, mpirun, mvapich, hydra, srun, torchrun, by_hand,
                                  with(with(srun, mpirun), torchrun)}) {
    const auto launch = read_environment(getenv_of(launched_in(around)));
    REQUIRE(launch.has_value());
    CHECK(launch->launcher == "lockstep-run");
    CHECK(launch->size == 3);
    CHECK(launch->token_descriptor == 512);
    CHECK(launch->survive_descriptor == 513);
  }
}

TEST_CASE("surroundings: what a rank of lockstep-run starts by another launcher is that one's") {
  for (const Variables& around : {Variables{}, mpirun, srun, torchrun}) {
    const Variables rank = launched_in(around);
    const Variables inner = with(mpirun, {{"PMIX_NAMESPACE", "346"}});
    const auto launch = read_environment(getenv_of(with(rank, inner)));
    REQUIRE(launch.has_value());
    CHECK(launch->launcher == "mpirun");
    CHECK(launch->job == "346");
    CHECK(launch->rank == 1);
    CHECK(launch->size == 2);
    CHECK(launch->rendezvous.empty());
    CHECK(launch->token_descriptor == -1);
    CHECK(launch->survive_descriptor == -1);
    const auto step = read_environment(getenv_of(with(rank, with(srun, {{"SLURM_STEP_ID", "1"}}))));
    CHECK(step->launcher == "srun");
    const auto torch =
        read_environment(getenv_of(with(rank, with(torchrun, {{"TORCHELASTIC_RUN_ID", "new"}}))));
    CHECK(torch->launcher == "torchrun");
    CHECK(torch->size == 2);
    CHECK(torch->token_descriptor == -1);
    CHECK(torch->survive_descriptor == -1);
  }
  // One variable alone is no launcher: MPI_Init without mpirun sets such a one.
  for (const Variables& around : {Variables{}, mpirun, srun, torchrun})
    for (const Variables& alone :
         {Variables{{"PMIX_NAMESPACE", "singleton"}}, Variables{{"SLURM_PROCID", "7"}},
          Variables{{"SLURM_STEP_ID", "7"}}, Variables{{"PMI_RANK", "7"}},
          Variables{{"OMPI_COMM_WORLD_RANK", "7"}}, Variables{{"TORCHELASTIC_RUN_ID", "new"}}}) {
      const std::string name = alone.begin()->first;
      if (around.contains(name)) continue;  // it was there: then another launcher has changed it
      CAPTURE(name);
      const auto launch = read_environment(getenv_of(with(launched_in(around), alone)));
      REQUIRE(launch.has_value());
      CHECK(launch->launcher == "lockstep-run");
    }
  // Where they meet may be set for the inner one.
  CHECK(read_environment(
            getenv_of(with(with(launched_in({}), mpirun), {{"LOCKSTEP_RENDEZVOUS", "n1:7000"}})))
            ->rendezvous == "n1:7000");
}

TEST_CASE("surroundings: a rank of lockstep-run whose number was changed is refused") {
  const Variables rank = launched_in({{"HOME", "a b\nc"}});
  CHECK(contains(error_of(with(rank, {{"RANK", "1"}})),
                 "RANK=1, but lockstep-run has started this process with RANK=0"));
  CHECK(contains(error_of(with(rank, {{"WORLD_SIZE", "1"}})),
                 "WORLD_SIZE=1, but lockstep-run has started this process with WORLD_SIZE=3"));
  CHECK(contains(error_of(without(rank, {"RANK"})), "RANK is not set, but lockstep-run"));
  CHECK_FALSE(read_environment(getenv_of(without(rank, {"RANK", "WORLD_SIZE"}))).has_value());
}

TEST_CASE("surroundings: a launcher passes on none of the variables of another one of ours") {
  for (const auto& [name, value] : launched_in({}))
    if (name.starts_with("LOCKSTEP_")) CHECK(belongs_to_launcher(name));
  for (const char* users : {"LOCKSTEP_INTERFACE", "LOCKSTEP_WATCHDOG", "LOCKSTEP_DIE_WITH_PARENT",
                            "LOCKSTEP_SECRET_FILE", "LOCKSTEP_BLOCKING", "HOME"})
    CHECK_FALSE(belongs_to_launcher(users));
}

TEST_CASE("surroundings: an inherited descriptor is known by what it is") {
  const Descriptor memory = moved_up(Descriptor(::memfd_create("token", MFD_CLOEXEC)));
  CHECK(memory.get() >= 64);
  CHECK(::fcntl(memory.get(), F_GETFD) == FD_CLOEXEC);
  const std::string number = std::to_string(memory.get());
  const int numbers[] = {memory.get()};
  const Getenv get =
      getenv_of({{"LOCKSTEP_TOKEN_FD", number}, {"LOCKSTEP_DESCRIPTORS", identities_of(numbers)}});
  CHECK(inherited(get, "LOCKSTEP_TOKEN_FD") == memory.get());
  CHECK_FALSE(inherited(get, "LOCKSTEP_ERROR_FD").has_value());
  check_inherited(get);
  ::fcntl(memory.get(), F_SETFD, 0);
  keep_from_children(get);
  CHECK(::fcntl(memory.get(), F_GETFD) == FD_CLOEXEC);
  // Of a launcher that does not tell, any is taken.
  CHECK(inherited(getenv_of({{"LOCKSTEP_TOKEN_FD", "7"}}), "LOCKSTEP_TOKEN_FD") == 7);

  const Descriptor other(::memfd_create("token", MFD_CLOEXEC));
  REQUIRE(::dup2(other.get(), memory.get()) == memory.get());
  CHECK_FALSE(inherited(get, "LOCKSTEP_TOKEN_FD").has_value());
  CHECK_THROWS_WITH_AS(check_inherited(get), doctest::Contains("is another file here"), UsageError);
  ::close(memory.get());
  CHECK_THROWS_WITH_AS(check_inherited(get), doctest::Contains("is closed here"), UsageError);
  REQUIRE(::dup2(other.get(), memory.get()) == memory.get());  // its end closes it
}

TEST_CASE("surroundings: sockets lie where TMPDIR says, if their address has room for that") {
  const TemporaryFolder folder;
  const auto base = [](const char* temporary, const char* of_user) {
    const auto set = [](const char* name, const char* value) {
      value ? ::setenv(name, value, 1) : ::unsetenv(name);
    };
    set("TMPDIR", temporary);
    set("XDG_RUNTIME_DIR", of_user);
    std::string result = socket_base();
    set("TMPDIR", nullptr);
    set("XDG_RUNTIME_DIR", nullptr);
    return result;
  };
  const std::string path = folder.path(), far = "/" + std::string(60, 'x');
  CHECK(base(nullptr, nullptr) == "/tmp");
  CHECK(base("", "") == "/tmp");
  CHECK(base(path.c_str(), "/run") == path);
  CHECK(base(nullptr, path.c_str()) == path);
  CHECK(base("relative", path.c_str()) == path);
  CHECK(base(far.c_str(), path.c_str()) == path);
  CHECK(base(nullptr, "/nowhere") == "/tmp");
  ::setenv("TMPDIR", path.c_str(), 1);
  {
    const SocketFolder one, two;
    CHECK(one.path() != two.path());
    CHECK(one.path().starts_with(path + "/lockstep-"));
    struct stat status {};
    REQUIRE(::stat(one.path().c_str(), &status) == 0);
    CHECK((status.st_mode & 07777) == 0700);
  }
  CHECK(folder.empty());
  ::unsetenv("TMPDIR");
}

TEST_CASE("surroundings: groups meet in TMPDIR, and leave nothing there") {
  const TemporaryFolder folder, meeting;
  for (const bool there : {true, false}) {
    CAPTURE(there);
    ::setenv("TMPDIR", there ? folder.path().c_str() : "/nowhere", 1);
    const auto outcomes = test::run_processes(3, [&](int rank) {
      test::set_rank_environment(rank, 3, "unix:" + meeting / "rendezvous");
      const World world = World::join({.timeout = Seconds(20)});
      const World group = world.split(0).value();
      const Tensor ones = Tensor::full({3}, 1);
      group.split(rank == 2 ? 1 : 0)->communicator().all_reduce(ones, "ones").wait();
    });
    ::unsetenv("TMPDIR");
    for (const test::Outcome& outcome : outcomes) CHECK(outcome.well() == there);
    if (!there) CHECK(contains(outcomes[0].message, "/nowhere/lockstep-"));
    CHECK(folder.empty());
  }
}

}  // namespace
}  // namespace lockstep::dist::surroundings_of_launchers
