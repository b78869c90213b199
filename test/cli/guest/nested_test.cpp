// Launchers inside launchers, and variables that somebody has left in the environment.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <string>
#include <vector>

#include "support/program.h"

namespace lockstep::test::guest_nested {
namespace {

const std::string joined = LOCKSTEP_BIN_DIR "/joined", launcher = LOCKSTEP_BIN_DIR "/lockstep-run";
const std::vector<std::string> as_root = {"OMPI_ALLOW_RUN_AS_ROOT=1",
                                          "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "OMP_NUM_THREADS=1"};

bool has_mpirun() {
  if (run({"sh", "-c", "mpirun --version | grep 'Open MPI'"}).code == 0) return true;
  MESSAGE("skipped: there is no Open MPI's mpirun");
  return false;
}

Ended shell(const std::string& script, std::vector<std::string> variables = {}) {
  variables.insert(variables.end(), as_root.begin(), as_root.end());
  return run({"sh", "-c", script}, variables);
}

}  // namespace

TEST_CASE("guest: variables of another world make mpirun's ranks an error, not two worlds") {
  if (!has_mpirun()) return;
  const std::string two = "mpirun --oversubscribe -n 2 ";
  for (const std::vector<std::string>& variables : std::vector<std::vector<std::string>>{
           {"RANK=0", "WORLD_SIZE=1"},
           {"RANK=0", "WORLD_SIZE=1", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1"},
           {"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=2", "MASTER_PORT=1"},
           {"PMI_RANK=0", "PMI_SIZE=3", "MPI_LOCALRANKID=0", "MPI_LOCALNRANKS=3"}}) {
    CAPTURE(variables.front());
    const Ended ended = shell(two + joined, variables);
    CAPTURE(ended.err);
    CHECK(ended.code == 2);
    CHECK(contains(ended.err, variables.front()));
    CHECK(contains(ended.err, "OMPI_COMM_WORLD_SIZE=2 (mpirun"));
    CHECK(contains(ended.err, "are two worlds"));
    CHECK(ended.out.empty());
  }
  // What says the same is no contradiction.
  const Ended same = shell(two +
                           "sh -c 'export RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=2 LOCAL_RANK=$RANK "
                           "LOCAL_WORLD_SIZE=2 MASTER_PORT=1; LOCAL_RANK=$RANK exec " +
                           joined + "'");
  CAPTURE(same.err);
  CHECK(same.code == 0);
  CHECK(contains(same.out, "rank 1 of 2\n"));
}

TEST_CASE("guest: a lockstep-run inside a rank of a surviving job is a job of its own") {
  const Ended ended = shell(launcher + " -n 2 --survive --respawn 1 sh -c '" + launcher +
                            " -n 3 sh -c \"env | grep -c LOCKSTEP_SURVIVE_FD; " + joined + "\"'");
  CAPTURE(ended.err);
  CHECK(ended.code == 0);
  for (const char* rank : {"0", "1", "2"})
    CHECK(count(ended.out, fmt::format("rank {} of 3\n", rank)) == 2);
  CHECK(count(ended.out, "0\n") == 6);
}

TEST_CASE("guest: the nearest launcher counts") {
  if (!has_mpirun()) return;
  const std::string mpirun = "mpirun --oversubscribe -n 2 ";
  // In a rank of mpirun's, and the reverse; --survive would lead a world of mpirun's astray.
  const Ended in_mpirun = shell(mpirun + launcher + " -n 3 " + joined + " split");
  CAPTURE(in_mpirun.err);
  CHECK(in_mpirun.code == 0);
  for (const char* rank : {"0", "1", "2"})
    CHECK(count(in_mpirun.out, fmt::format("rank {} of 3\n", rank)) == 2);
  for (const char* options : {" -n 1 ", " -n 1 --survive ", " -n 3 "}) {
    CAPTURE(options);
    const Ended mpirun_inside = shell(launcher + options + mpirun + joined);
    CAPTURE(mpirun_inside.err);
    CHECK(mpirun_inside.code == 0);
    const int worlds = contains(options, "3") ? 3 : 1;
    CHECK(count(mpirun_inside.out, "rank 0 of 2\n") == worlds);
    CHECK(count(mpirun_inside.out, "rank 1 of 2\n") == worlds);
  }
}

TEST_CASE("guest: a rank whose number was changed by hand is refused") {
  const Ended ended = run(launched(2, "RANK=0 WORLD_SIZE=1 exec " + joined));
  CAPTURE(ended.err);
  CHECK(ended.code == 2);
  CHECK(contains(ended.err, "but lockstep-run has started this process with"));
  const Ended alone = run(launched(2, "unset RANK WORLD_SIZE; exec " + joined));
  CHECK(alone.code == 0);
  CHECK(count(alone.out, "rank 0 of 1\n") == 2);
}

}  // namespace lockstep::test::guest_nested
