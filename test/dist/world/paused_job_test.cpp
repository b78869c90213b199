// A job that is stopped as a whole and goes on later: a laptop that sleeps, a frozen container,
// `kill -STOP`. The pause is nobody's fault.

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <new>
#include <thread>

#include "lockstep/dist/world/world.h"
#include "support/forked_ranks.h"

namespace lockstep {
namespace {

using test::expect;

constexpr double timeout = 0.8;
constexpr int most_ranks = 4;

/// In memory of all processes.
struct Job {
  std::array<std::atomic<pid_t>, most_ranks> ranks{};
  std::atomic<int> ready{0};
  std::atomic<int> pauses{0};
};

void await(const std::function<bool()>& reached) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!reached()) {
    check<Error>(std::chrono::steady_clock::now() < end, "the others are nowhere");
    ::usleep(1000);
  }
}

/// Stops all ranks for longer than the timeout, `times` times, while they wait.
void pause_job(Job& job, int size, int times) {
  for (int k = 0; k < times; ++k) {
    await([&] { return job.ready >= (k + 1) * size; });
    ::usleep(100'000);  // by now all but one wait
    for (int rank = 0; rank < size; ++rank) ::kill(job.ranks[dist::index(rank)], SIGSTOP);
    ::usleep(static_cast<useconds_t>(2.5e6 * timeout));
    for (int rank = 0; rank < size; ++rank) ::kill(job.ranks[dist::index(rank)], SIGCONT);
    ++job.pauses;
  }
}

/// The others wait for the rank that comes late, when the job is stopped and afterwards.
void wait_through_pauses(const World& world, Job& job) {
  dist::Communicator& all = world.communicator();
  const int size = world.size();
  const auto come_late = [&](int pause, int late_rank) {
    ++job.ready;
    if (world.rank() == late_rank) {
      await([&] { return job.pauses > pause; });
      ::usleep(static_cast<useconds_t>(0.3e6 * timeout));
    }
  };
  come_late(0, size - 1);
  const Tensor data = Tensor::full({1000}, world.rank() + 1);
  all.all_reduce(data, "after a pause").wait();
  const auto sum = static_cast<float>(size * (size + 1) / 2);
  for (const float value : data.span<float>()) expect(value == sum, "{}", value);
  come_late(1, 0);
  all.allocate(1000, DType::f32);
  const auto group = world.split(0);
  group->communicator().barrier("in a group").wait();
}

TEST_CASE("paused job: the pause does not count, wherever the ranks wait" *
          doctest::test_suite("slow not-address not-thread")) {
  const struct {
    std::string transport;
    int size, ranks_per_node;
  } cases[] = {{"shm", 4, 9}, {"tcp", 2, 9}, {"", 3, 2}};
  for (const auto& of : cases) {
    const std::string transport = of.transport;
    const int size = of.size, ranks_per_node = of.ranks_per_node;
    CAPTURE(transport);
    CAPTURE(size);
    const test::TemporaryFolder folder;
    void* const memory =
        ::mmap(nullptr, sizeof(Job), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    const std::unique_ptr<void, void (*)(void*)> keeper(memory,
                                                        [](void* p) { munmap(p, sizeof(Job)); });
    Job& job = *new (memory) Job;
    const std::string rendezvous =
        ranks_per_node >= size ? "unix:" + folder / "rendezvous" : test::free_address();
    test::check_all_well(test::run_processes(size + 1, [&](int rank) {
      if (rank == size) return pause_job(job, size, 2);
      job.ranks[dist::index(rank)] = ::getpid();
      test::set_rank_environment(rank, size, rendezvous, ranks_per_node);
      const World world = World::join({.transport = transport, .timeout = dist::Seconds(timeout)});
      wait_through_pauses(world, job);
    }));
  }
}

}  // namespace
}  // namespace lockstep
