// A program that initializes MPI, or finalizes it, beside a World over MPI: what is the program's
// stays the program's.

#include <doctest/doctest.h>

#include <filesystem>
#include <string>

#include "support/program.h"

namespace lockstep::test::guest_mpi_guest {
namespace {

const std::string program = LOCKSTEP_BIN_DIR "/mpi_guest";

bool can_start() {
  if (std::filesystem::exists(program) && run({"sh", "-c", "command -v mpirun"}).code == 0)
    return true;
  MESSAGE("skipped: there is no mpirun, or this build has no MPI");
  return false;
}

Ended under_mpirun(const std::string& how) {
  return run({"mpirun", "--oversubscribe", "--timeout", "50", "-n", "2", program, how},
             {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "OMP_NUM_THREADS=1"});
}

}  // namespace

TEST_CASE("guest: a program may initialize and finalize MPI itself, around a World over MPI") {
  if (!can_start()) return;
  for (const char* how : {"around", "threads", "twice", "finalize", "neither"}) {
    CAPTURE(how);
    const Ended ended = under_mpirun(how);
    CAPTURE(ended.err);
    CHECK(ended.code == 0);
    CHECK(count(ended.out, "all well\n") == 2);
  }
  const Ended alone = run({program, "around"});  // without mpirun
  CAPTURE(alone.err);
  CHECK(alone.code == 0);
  CHECK(alone.out == "all well\n");
}

TEST_CASE("guest: after the program's MPI_Finalize a World ends in peace, or says what is wrong") {
  if (!can_start()) return;
  const Ended inside = under_mpirun("inside");
  CAPTURE(inside.err);
  CHECK(inside.code == 0);
  for (const char* how : {"too-early", "pending"}) {
    CAPTURE(how);
    const Ended ended = under_mpirun(how);
    CAPTURE(ended.err);
    CHECK(ended.code == 1);
    CHECK(contains(ended.err, "MPI_Finalize was called before the end of the World"));
    CHECK_FALSE(contains(ended.err, "MPI_ABORT"));
  }
  const Ended over = under_mpirun("over");
  CAPTURE(over.err);
  CHECK(over.code == 2);
  CHECK(contains(over.err, "error: [mpi] MPI_Finalize was called before World::join"));
}

TEST_CASE("guest: an MPI for one thread alone is used by that thread, or refused") {
  if (!can_start()) return;
  const Ended ended = under_mpirun("other-thread");
  CAPTURE(ended.err);
  CHECK(ended.code == 2);
  CHECK(contains(ended.err, "can be called by the thread alone that initialized it"));
}

TEST_CASE(
    "guest: a rank that has initialized MPI and never joins is waited for no longer than "
    "the timeout") {
  if (!can_start()) return;
  const Ended ended = under_mpirun("late");
  CAPTURE(ended.err);
  CHECK(ended.code != 0);
  CHECK(contains(ended.err, "[mpi] timed out after 1 s, waiting for all ranks to join"));
}

}  // namespace lockstep::test::guest_mpi_guest
