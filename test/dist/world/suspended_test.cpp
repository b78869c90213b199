// Ranks that are stopped (Ctrl-Z) for longer than their timeout continue where they were.

#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "lockstep/core/error.h"
#include "lockstep/dist/world/world.h"
#include "support/forked_ranks.h"

using namespace lockstep;
using lockstep::test::TemporaryFolder;

namespace {

void wait_for_file(const std::string& path) {
  for (int k = 0; k < 6000; ++k, ::usleep(10000))
    if (std::filesystem::exists(path)) return;
  fail<Error>("waited in vain for {}", path);
}

/// Made under another name first: whoever sees it sees all of it.
void make_file(const std::string& path, long content) {
  std::ofstream(path + ".new") << content;
  std::filesystem::rename(path + ".new", path);
}

pid_t pid_in(const std::string& path) {
  wait_for_file(path);
  pid_t pid = 0;
  std::ifstream(path) >> pid;
  return pid;
}

constexpr double limit = 4;  // seconds

// Rank 0 waits in the second sum for rank 1, which waits for the file "go".
void sum_twice(int rank, const TemporaryFolder& folder, const std::string& transport) {
  test::set_rank_environment(rank, 2, "unix:" + folder / "rendezvous");
  const World world = World::join({.transport = transport, .timeout = dist::Seconds(limit)});
  const auto sum = [&] {
    const Tensor value = Tensor::full({3}, rank + 1);
    world.communicator().all_reduce(value, "value").wait();
    check<Error>(value.to_vector<float>() == std::vector<float>(3, 3), "a wrong sum");
  };
  sum();
  make_file(folder / ("rank" + std::to_string(rank)), ::getpid());
  if (rank == 1) wait_for_file(folder / "go");
  sum();
}

void stop_for_a_while(const TemporaryFolder& folder) {
  const pid_t first = pid_in(folder / "rank0"), second = pid_in(folder / "rank1");
  ::usleep(300000);  // rank 0 waits by now; if it does not, the test asks for less
  for (const pid_t rank : {first, second}) ::kill(rank, SIGSTOP);
  ::usleep(static_cast<useconds_t>((limit + 1) * 1e6));
  make_file(folder / "go", 0);
  ::kill(first, SIGCONT);  // it looks at the clock before rank 1 comes
  ::usleep(300000);
  ::kill(second, SIGCONT);
}

}  // namespace

TEST_CASE("a stop that is longer than the timeout is no reason to give up" *
          doctest::test_suite("slow")) {
  for (const std::string transport : {"shm", "tcp"}) {
    CAPTURE(transport);
    const TemporaryFolder folder;
    test::check_all_well(test::run_processes(3, [&](int process) {
      if (process < 2)
        sum_twice(process, folder, transport);
      else
        stop_for_a_while(folder);
    }));
  }
}
