// A rank stops in the middle of its work, and says nothing. All others must name it, although most
// of them wait for a rank that only waits itself.

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/time.h>

#include <array>
#include <atomic>
#include <new>
#include <random>
#include <regex>

#include "lockstep/dist/world/world.h"
#include "support/drill.h"
#include "support/forked_ranks.h"
#include "support/worlds.h"

namespace lockstep {
namespace {

using test::expect;

/// Whom the message of a rank's error blames, in the numbers of the world; -1: nobody.
int blamed(const std::string& message) {
  static const std::regex pattern("waiting for rank ([0-9]+)(, rank ([0-9]+) of the world)?");
  std::smatch match;
  if (!std::regex_search(message, match, pattern)) return -1;
  return std::stoi(match[3].matched ? match[3] : match[1]);
}

void check_blame(const std::vector<std::string>& messages, int victim) {
  for (int rank = 0; rank < static_cast<int>(messages.size()); ++rank) {
    if (rank == victim) continue;
    INFO("rank ", rank, ": ", messages[dist::index(rank)]);
    CHECK(blamed(messages[dist::index(rank)]) == victim);
  }
}

/// Counts the ranks that have ended.
struct AtEnd {
  explicit AtEnd(std::atomic<int>& ended) : count(ended) {}
  AtEnd(const AtEnd&) = delete;
  AtEnd& operator=(const AtEnd&) = delete;
  ~AtEnd() { ++count; }
  std::atomic<int>& count;
};
void await_end_of(const std::atomic<int>& ended, int ranks) {
  while (ended < ranks) ::usleep(1000);
}

struct Kind {
  std::string transport;
  int ranks_per_node;
  std::vector<std::string> comms;
};

/// What a seed stands for.
struct HungRank {
  explicit HungRank(std::uint64_t seed) : random(seed) {
    static const std::vector<Kind> kinds{
        {"shm", 9, {"ring", "direct", "one-shot", "halving"}},
        {"tcp", 9, {"ring", "direct", "one-shot", "halving"}},
        {"", 2, {"ring", "direct", "hierarchical"}},  // shm+tcp
    };
    kind = kinds[seed % kinds.size()];
    size = kind.ranks_per_node == 2 ? 3 + below(4) : 2 + below(5);
    victim = below(size);
    comm = kind.comms[static_cast<std::size_t>(below(static_cast<int>(kind.comms.size())))];
    count = std::array{1, 1000, 300'000}[static_cast<std::size_t>(below(3))];
    allocated = below(2) == 0;
    groups = below(2) == 0;
    microseconds = 1 + below(60'000);
    loops = below(2) == 0;
  }
  int below(int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); }
  std::string text() const {
    return fmt::format("rank {} of {} {}, '{}', {}, {} elements{}{}, after {} us", victim, size,
                       loops ? "loops" : "is stopped", kind.transport, comm, count,
                       allocated ? ", allocated" : "", groups ? ", groups" : "", microseconds);
  }

  std::mt19937_64 random;
  Kind kind;
  std::string comm;
  int size, victim, count, microseconds;
  bool allocated, groups, loops;  // loops: for ever, else it is stopped
};

/// Collectives of the world and of its groups in turns, for ever.
void work(const World& world, const HungRank& scenario, const std::function<void()>& ready) {
  dist::Communicator& all = world.communicator();
  std::optional<World> group;
  if (scenario.groups) group = world.split(world.rank() % 2);
  const auto data_of = [&](dist::Communicator& communicator) {
    return scenario.allocated ? communicator.allocate(scenario.count, DType::f32)
                              : Tensor::zeros({scenario.count});
  };
  const Tensor ours = data_of(all);
  Tensor theirs;
  if (group) theirs = data_of(group->communicator());
  all.barrier("begin").wait();
  ready();
  while (true) {
    if (group) group->communicator().all_reduce(theirs, "of the group").wait();
    all.all_reduce(ours, "of all").wait();
  }
}

std::int64_t microseconds_now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1'000'000 + time.tv_nsec / 1000;
}

/// In memory of all processes.
struct Watch {
  std::atomic<std::int64_t> hung_at{0};
  std::atomic<int> others_ended{0};
  std::atomic<std::int64_t> latest{0};  // microseconds from the end of the timeout to an error
};
Watch* watch = nullptr;

void stop_here(int) {
  watch->hung_at = microseconds_now();
  ::raise(SIGSTOP);
}

int others = 0;  // of the rank that loops
/// It computes, and calls nothing, until nobody is left whom that could trouble.
void loop_here(int) {
  watch->hung_at = microseconds_now();
  for (volatile double x = 1; watch->others_ended < others;) x = x * 0.999 + 1;
  ::_exit(0);
}

/// Lets this process hang after so long, wherever it is then.
void hang_after(int microseconds, bool by_loop) {
  struct sigaction action {};
  action.sa_handler = by_loop ? &loop_here : &stop_here;
  action.sa_flags = SA_RESTART;
  sigaction(SIGALRM, &action, nullptr);
  const itimerval timer{{0, 0}, {0, microseconds}};
  setitimer(ITIMER_REAL, &timer, nullptr);
}

/// Returns the latest error's seconds after the timeout.
double play_hung_rank(std::uint64_t seed) {
  constexpr double timeout = 2;
  const HungRank scenario(seed);
  const test::TemporaryFolder folder;
  void* const memory =
      ::mmap(nullptr, sizeof(Watch), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  check<Error>(memory != MAP_FAILED, "no shared memory");
  const std::unique_ptr<void, void (*)(void*)> keeper(memory,
                                                      [](void* p) { munmap(p, sizeof(Watch)); });
  watch = new (memory) Watch;
  others = scenario.size - 1;
  const bool one_machine = scenario.kind.ranks_per_node >= scenario.size;
  const std::string rendezvous =
      one_machine ? "unix:" + folder / "rendezvous" : test::free_address();
  const auto outcomes = test::run_processes(scenario.size, [&](int rank) {
    test::set_rank_environment(rank, scenario.size, rendezvous, scenario.kind.ranks_per_node);
    const AtEnd at_end(watch->others_ended);
    const World world = World::join({.comm = scenario.comm,
                                     .transport = scenario.kind.transport,
                                     .timeout = dist::Seconds(timeout)});
    try {
      work(world, scenario, [&] {
        if (rank == scenario.victim) hang_after(scenario.microseconds, scenario.loops);
      });
    } catch (const CommError& error) {
      const std::int64_t late = microseconds_now() - watch->hung_at;
      if (late > watch->latest) watch->latest = late;
      throw;
    }
  });
  const double late = static_cast<double>(watch->latest) * 1e-6 - timeout;
  expect(late < 1, "{}: an error {} s after the timeout", scenario.text(), late);
  for (int rank = 0; rank < scenario.size; ++rank) {
    if (rank == scenario.victim) continue;
    const test::Outcome& outcome = outcomes[dist::index(rank)];
    expect(outcome.kind == "comm" || outcome.kind == "peer", "{}: rank {}: {} {}", scenario.text(),
           rank, outcome.kind, outcome.message);
    expect(blamed(outcome.message) == scenario.victim, "{}: rank {} blames {}: {}", scenario.text(),
           rank, blamed(outcome.message), outcome.message);
  }
  return late;
}

}  // namespace

TEST_CASE("drill hung-rank: all others name the rank that hangs, within timeout + 1 s" *
          doctest::test_suite("slow")) {
  double latest = 0;
  const auto runs =
      test::drill(6, [&](std::uint64_t seed) { latest = std::max(latest, play_hung_rank(seed)); });
  MESSAGE(runs, " runs, the latest error ", latest, " s after the timeout");
}

TEST_CASE("hung rank: on threads, the one that never calls is named, not its neighbour") {
  for (const int size : {2, 3, 4, 7}) {
    for (const std::string comm : {"ring", "direct", "one-shot", "halving"}) {
      CAPTURE(size);
      CAPTURE(comm);
      const int victim = size / 2;
      const dist::Seconds limit(0.5);
      const bool of_one_call = size % 2 == 1;  // else of all
      std::atomic<int> ended{0};
      const auto rank_of_world = [&](World& world) {
        const Tensor data = Tensor::zeros({1000});
        world.communicator().all_reduce(data, "before").wait();
        const AtEnd at_end(ended);
        if (world.rank() == victim) return await_end_of(ended, size - 1);
        dist::Work work = world.communicator().all_reduce(data, "bucket 0");
        of_one_call ? work.wait(limit) : work.wait();
      };
      check_blame(
          test::messages_on_threads(size, rank_of_world,
                                    {.comm = comm, .timeout = of_one_call ? 60 * limit : limit}),
          victim);
    }
  }
}

TEST_CASE("hung rank: a group waits for a rank that waits in another one") {
  // Rank 3 sleeps. Rank 2 waits for it in a group, and ranks 0 and 1 for rank 2 in another one.
  std::atomic<int> ended{0};
  const auto rank_of_world = [&](World& world) {
    const auto three = world.new_group({2, 1, 0}), pair = world.new_group({2, 3});
    const Tensor data = Tensor::zeros({10});
    const AtEnd at_end(ended);
    if (world.rank() == 3) return await_end_of(ended, 3);
    if (pair) pair->communicator().all_reduce(data, "of two").wait();
    three->communicator().all_reduce(data, "of three").wait();
  };
  check_blame(
      test::messages_on_threads(4, rank_of_world, {.comm = "ring", .timeout = dist::Seconds(0.5)}),
      3);
}

TEST_CASE("hung rank: ranks that wait for each other are no culprits") {
  const auto rank_of_world = [](World& world) {
    const Tensor data = Tensor::zeros({10});
    dist::Communicator &first = world.communicator(), &second = world.layer_communicator();
    if (world.rank() == 0) first.all_reduce(data, "one").wait();
    second.all_reduce(data, "two").wait();
    if (world.rank() == 1) first.all_reduce(data, "one").wait();
  };
  const auto messages =
      test::messages_on_threads(2, rank_of_world, {.comm = "ring", .timeout = dist::Seconds(0.5)});
  const std::string both = messages[0] + messages[1];
  INFO(both);
  CHECK(test::contains(both, "ranks wait for each other: rank "));
  CHECK(!test::contains(both, "which has not moved"));
}

TEST_CASE("hung rank: in a simulated world the chain of waits leads to it") {
  for (const int size : {2, 3, 4, 7}) {
    for (const dist::Algorithm algorithm :
         {dist::Algorithm::ring, dist::Algorithm::two_shot, dist::Algorithm::halving}) {
      const int victim = size / 2;
      const auto boards = dist::threads_wait_boards(size);
      const dist::SimReport report = dist::simulate(
          {.seed = 7, .size = size}, [&](int rank, std::unique_ptr<dist::Transport> transport) {
            dist::HostCommunicator comm(std::move(transport), {.algorithm = algorithm,
                                                               .timeout = dist::Seconds(60),
                                                               .board = boards[dist::index(rank)]});
            const Tensor data = Tensor::zeros({500});
            comm.all_reduce(data, "bucket 0").wait();
            if (rank == victim)
              for (unsigned k = 0;; ++k) comm.transport().relax(k);
            comm.all_reduce(data, "bucket 1").wait();
          });
      std::vector<std::string> messages;
      for (const auto& error : report.errors) messages.push_back(test::message_of(error));
      check_blame(messages, victim);
      CHECK(report.end < dist::Seconds(63));
    }
  }
}

}  // namespace lockstep
