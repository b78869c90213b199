#pragma once
// Tests of MPI start themselves under mpirun: its ranks run test cases that are skipped otherwise.

#include <doctest/doctest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "lockstep/dist/mpi/mpi.h"
#include "support/text.h"

namespace lockstep::dist::testing {

inline const Seconds limit(30);

struct MpiJob {
  int code;  // exit code of mpirun, or -1 if a signal ended it
  std::string out;
  int count(const std::string& text) const { return test::count(out, text); }
};

inline MpiJob shell(const std::string& command) {
  std::FILE* const pipe = ::popen((command + " 2>&1 </dev/null").c_str(), "r");
  REQUIRE(pipe != nullptr);
  MpiJob job{-1, {}};
  char buffer[4096];
  while (const std::size_t got = std::fread(buffer, 1, sizeof buffer, pipe))
    job.out.append(buffer, got);
  const int status = ::pclose(pipe);
  if (WIFEXITED(status)) job.code = WEXITSTATUS(status);
  return job;
}

inline bool can_start() {
  if (mpi_available() && shell("mpirun --version").out.find("Open MPI") != std::string::npos)
    return true;
  const std::string why =
      mpi_available() ? "there is no Open MPI's mpirun" : "this build has no MPI";
  MESSAGE("skipped: ", why);
  return false;
}

// Rank processes that run `test_case`. mpirun ends what hangs, and says so; it may hang itself.
inline MpiJob start(int ranks, const std::string& test_case) {
  return shell(fmt::format(
      "timeout --signal=KILL 90 mpirun --allow-run-as-root --oversubscribe --timeout 60 -n {} "
      "'{}' --no-skip '-tc={}'",
      ranks, std::filesystem::read_symlink("/proc/self/exe").string(), test_case));
}

// Whether this process was started by mpirun, and not by hand with --no-skip.
inline bool is_rank() { return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr; }

inline void say(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

}  // namespace lockstep::dist::testing
