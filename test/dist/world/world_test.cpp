#include "lockstep/dist/world/world.h"

#include <doctest/doctest.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <optional>
#include <thread>

#include "dist/collectives/exercise.h"
#include "lockstep/autograd/autocast.h"
#include "lockstep/dist/rendezvous/socket.h"
#include "support/forked_ranks.h"

namespace lockstep {
namespace {

using test::contains;
using test::expect;
using test::Outcome;
using test::TemporaryFolder;

TEST_CASE("world: started alone") {
  const World world = World::join();
  CHECK(world.rank() == 0);
  CHECK(world.size() == 1);
  CHECK(world.local_rank() == 0);
  CHECK(world.local_size() == 1);
  CHECK(Shard(world).size == 1);
  dist::testing::exercise<float>(world.communicator(), 100);
}

TEST_CASE("world: options") {
  CHECK_THROWS_WITH_AS(World::join({.comm = "tree"}), doctest::Contains("'tree'"), UsageError);
  CHECK_THROWS_WITH_AS(World::join({.transport = "rdma"}), doctest::Contains("'rdma'"), UsageError);
  CHECK_THROWS_AS(World::join({.timeout = dist::Seconds(0)}), UsageError);
  CHECK_THROWS_AS(run_threads(2, {.transport = "shm"}, [](World&) {}), UsageError);
  CHECK_THROWS_WITH_AS(run_threads(2, {.comm = "mpi"}, [](World&) {}),
                       "[world] ranks as threads cannot use comm mpi", UsageError);
  CHECK_THROWS_AS(run_threads(0, {}, [](World&) {}), UsageError);
  const Autocast autocast(DType::bf16);  // of this thread alone
  CHECK_THROWS_WITH_AS(run_threads(2, {}, [](World&) {}), doctest::Contains("Autocast to bf16"),
                       UsageError);
}

TEST_CASE("world: ranks as threads") {
  for (const int size : {1, 2, 3, 4, 7}) {
    for (const char* comm : {"auto", "ring", "direct", "one-shot", "halving", "hierarchical"}) {
      CAPTURE(size);
      CAPTURE(comm);
      std::atomic<int> ended{0};
      run_threads(size, {.comm = comm}, [&](World& world) {
        expect(world.size() == size && world.local_size() == size, "size {}", world.size());
        expect(world.local_rank() == world.rank(), "local rank {}", world.local_rank());
        expect(world.transport() == "threads", "{}", world.transport());
        dist::testing::exercise<float>(world.communicator(), 101);
        ++ended;
      });
      CHECK(ended == size);
    }
  }
}

TEST_CASE("world: the cause among threads is reported, not its consequences") {
  for (const int culprit : {0, 1, 2}) {
    CAPTURE(culprit);
    const auto broken = [&](World& world) {
      const Tensor data = world.communicator().allocate(100, DType::f32);
      for (int i = 0; i < 1000; ++i) {
        if (world.rank() == culprit && i == 10) fail<DataError>("the disk is on fire");
        world.communicator().all_reduce(data, "gradients").wait();
      }
    };
    CHECK_THROWS_WITH_AS(run_threads(3, {}, broken), "the disk is on fire", DataError);
  }
}

TEST_CASE("world: a cause that comes after its consequences is reported all the same") {
  const auto body = [](World& world) {
    if (world.rank() == 0) throw PeerError("rank 1 is gone");
    try {
      world.communicator().barrier("never").wait();
    } catch (const PeerError&) {
      fail<DataError>("the disk is on fire");
    }
  };
  CHECK_THROWS_WITH_AS(run_threads(2, {}, body), "the disk is on fire", DataError);
}

#if !defined(__SANITIZE_THREAD__) && \
    !defined(__SANITIZE_ADDRESS__)  // they choose stacks themselves
TEST_CASE("world: a thread that cannot be started") {
  const auto outcomes = test::run_processes(1, [](int) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, std::size_t{1} << 46);
    expect(pthread_setattr_default_np(&attributes) == 0, "pthread_setattr_default_np");
    run_threads(3, {}, [](World&) {});
  });
  CHECK(outcomes[0].kind == "other");
  CHECK(contains(outcomes[0].message, "[world] cannot start a thread for rank 0 of 3: "));
}
#endif

TEST_CASE("world: one that ends by an exception takes the others along") {
  std::string seen;
  const auto body = [&](World& world) {
    const World copy = world;
    if (world.rank() == 0) throw 42;
    try {
      copy.communicator().barrier("never").wait();
    } catch (const PeerError& error) {
      seen = error.what();
    }
  };
  CHECK_THROWS_AS(run_threads(2, {}, body), int);
  CHECK(contains(seen, "rank 0 failed"));
}

// A layer's communicator is made when the first layer needs it: a rank that has ended before that
// has no part in it.
TEST_CASE("world: a thread that has ended is not waited for in a communicator made later") {
  const JoinOptions options{.timeout = dist::Seconds(20)};
  for (const std::string end : {"throws", "aborts", "leaves"}) {
    CAPTURE(end);
    std::atomic<int> split{0}, told{0};
    std::array<std::string, 3> seen;
    const auto await = [](const std::atomic<int>& count, int ranks) {
      while (count < ranks) std::this_thread::yield();
    };
    const auto body = [&](World& world) {
      const std::optional<World> group = world.split(0);
      ++split;
      await(split, 3);
      if (world.rank() == 1) {
        if (end == "leaves") return;
        if (end == "throws") fail<DataError>("a label out of range");
        world.abort("rank 1 had enough");
        group->abort("rank 1 had enough");
        await(told, 2);
        return;
      }
      for (const bool of_group : {false, true}) try {
          (of_group ? *group : world).layer_communicator().barrier("statistics").wait();
        } catch (const CommError& error) {
          seen[dist::index(world.rank())] += error.what();
        }
      ++told;
    };
    const auto start = std::chrono::steady_clock::now();
    if (end == "throws")
      CHECK_THROWS_WITH_AS(run_threads(3, options, body), "a label out of range", DataError);
    else
      run_threads(3, options, body);
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
    const std::string why = end == "aborts"   ? "rank 1 had enough"
                            : end == "leaves" ? "rank 1 left"
                                              : "rank 1";
    CHECK(contains(seen[0], why));
    CHECK(contains(seen[2], why));
  }
}

TEST_CASE("world: what breaks the communicator ends those who wait in a layer's") {
  for (const bool aborts : {false, true}) {
    CAPTURE(aborts);
    std::atomic<int> told{0};
    std::array<std::string, 3> seen;
    run_threads(3, {.timeout = dist::Seconds(20)}, [&](World& world) {
      std::string& mine = seen[dist::index(world.rank())];
      try {
        dist::Communicator& layers = world.layer_communicator();
        layers.barrier("first").wait();
        if (world.rank() != 1) layers.barrier("statistics").wait();
        if (aborts) world.communicator().abort("rank 1 found a NaN");
        world.communicator().barrier("alone").wait(dist::Seconds(0.1));
      } catch (const CommError& error) {
        mine = error.what();
      }
      ++told;
      while (told < 3) std::this_thread::yield();  // the world does not end before
    });
    for (const std::size_t r : {0, 2})
      CHECK(contains(seen[r],
                     aborts ? "rank 1 found a NaN" : "rank 1 gave up in barrier #1 'alone'"));
  }
}

TEST_CASE("world: ranks as processes") {
  for (const std::string transport : {"", "shm", "tcp"}) {
    for (const int size : {1, 2, 4}) {
      CAPTURE(transport);
      CAPTURE(size);
      const TemporaryFolder folder;
      const auto outcomes = test::run_processes(size, [&](int rank) {
        test::set_rank_environment(rank, size, "unix:" + folder / "rendezvous");
        const World world = World::join({.transport = transport, .timeout = dist::Seconds(20)});
        expect(world.rank() == rank && world.size() == size, "rank {}", world.rank());
        const std::string right = size == 1 ? "threads" : transport.empty() ? "shm" : transport;
        expect(world.transport() == right, "transport {}", world.transport());
        dist::testing::exercise<float>(world.communicator(), 1001);
      });
      test::check_all_well(outcomes);
      CHECK(folder.empty());
    }
  }
}

TEST_CASE("world: a process that throws says so to the others") {
  for (const std::string transport : {"shm", "tcp"}) {
    for (const int culprit : {0, 2}) {
      CAPTURE(transport);
      CAPTURE(culprit);
      const TemporaryFolder folder;
      const auto outcomes = test::run_processes(3, [&](int rank) {
        test::set_rank_environment(rank, 3, "unix:" + folder / "rendezvous");
        const World world = World::join({.transport = transport, .timeout = dist::Seconds(20)});
        const Tensor data = world.communicator().allocate(1000, DType::f32);
        for (int i = 0; i < 100; ++i) {
          if (rank == culprit && i == 20) fail<DataError>("label 12 is out of range");
          world.communicator().all_reduce(data, "gradients").wait();
        }
      });
      for (int r = 0; r < 3; ++r) {
        const Outcome& outcome = outcomes[static_cast<std::size_t>(r)];
        CAPTURE(r);
        CAPTURE(outcome.message);
        CHECK(outcome.kind == (r == culprit ? "other" : "peer"));
        if (r != culprit)
          CHECK(contains(outcome.message,
                         "rank " + std::to_string(culprit) + " was ended by an error"));
        CHECK(outcome.seconds < 10);
      }
    }
  }
}

TEST_CASE("world: shm is for one machine, tcp is taken on several") {
  const std::string address = test::free_address();
  const auto outcomes = test::run_processes(2, [&](int rank) {
    test::set_rank_environment(rank, 2, address);
    ::setenv("LOCAL_WORLD_SIZE", "1", 1);
    ::setenv("LOCAL_RANK", "0", 1);
    try {
      World::join({.transport = "shm"});
      fail<Error>("joined");
    } catch (const UsageError& error) {
      expect(contains(error.what(), "one machine"), "{}", error.what());
    }
    const World world = World::join({.timeout = dist::Seconds(20)});
    expect(world.transport() == "tcp" && world.local_rank() == 0, "transport {}",
           world.transport());
    dist::testing::exercise<float>(world.communicator(), 10);
  });
  test::check_all_well(outcomes);
}

TEST_CASE("world: the launcher's token") {
  const TemporaryFolder folder;
  const auto outcomes = test::run_processes(2, [&](int rank) {
    const int token = ::memfd_create("token", 0);
    expect(::write(token, std::string(32, 'k').data(), 32) == 32, "write");
    test::set_rank_environment(rank, 2, "unix:" + folder / "rendezvous");
    ::setenv("LOCKSTEP_TOKEN_FD", std::to_string(token).c_str(), 1);
    dist::testing::exercise<float>(World::join().communicator(), 10);
  });
  test::check_all_well(outcomes);
}

TEST_CASE("world: what is printed where stdout is closed does not reach the others") {
  const TemporaryFolder folder;
  for (const char* const transport : {"shm", "tcp"})
    test::check_all_well(test::run_processes(2, [&](int rank) {
      for (const int closed : {0, 1, 2}) ::close(closed);
      test::set_rank_environment(rank, 2, "unix:" + folder / transport);
      const World world = World::join({.transport = transport, .timeout = dist::Seconds(20)});
      for (int k = 0; k < 100; ++k) (void)!::write(1 + k % 2, "AAAAAAAAAAAAAAAA", 16);
      dist::testing::exercise<float>(world.communicator(), 100);
    }));
}

TEST_CASE("world: a child of a rank is no rank, and leaves its job alone") {
  const TemporaryFolder folder;
  for (const char* const transport : {"shm", "tcp"})
    test::check_all_well(test::run_processes(2, [&](int rank) {
      test::set_rank_environment(rank, 2, "unix:" + folder / transport);
      const World world = World::join({.transport = transport, .timeout = dist::Seconds(20)});
      const Tensor ones = Tensor::full({3}, 1);
      world.communicator().all_reduce(ones, "before").wait();
      const pid_t child = ::fork();
      if (child == 0) {
        try {
          world.communicator().all_reduce(ones, "of a child").wait();
        } catch (const StateError& error) {
          ::_exit(contains(error.what(), "'of a child'") ? 0 : 3);
        }
        ::_exit(4);
      }
      int status = -1;
      expect(::waitpid(child, &status, 0) == child && status == 0, "status {}", status);
      dist::testing::exercise<float>(world.communicator(), 100);
    }));
}

TEST_CASE("world: shared memory beyond `ulimit -f` is an error that says so, no signal") {
  const TemporaryFolder folder;
  const auto outcomes = test::run_processes(2, [&](int rank) {
    const rlimit files{100 << 10, 100 << 10};
    expect(::setrlimit(RLIMIT_FSIZE, &files) == 0, "setrlimit");
    test::set_rank_environment(rank, 2, "unix:" + folder / "here");
    const World world = World::join({.transport = "shm", .timeout = dist::Seconds(20)});
  });
  for (const Outcome& outcome : outcomes) {
    CHECK(outcome.kind == "comm");
    CHECK(contains(outcome.message, "ulimit -f"));
  }
}

}  // namespace
}  // namespace lockstep
