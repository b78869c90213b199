// Ranks that do not come, disagree, give up or die at the rendezvous.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "dist/rendezvous/rendezvous_support.h"
#include "lockstep/dist/transport/tcp/mesh.h"
#include "support/text.h"

namespace lockstep::dist {
namespace {

using namespace testing;

/// Whom the ranks of a world of 3 blame if one of them stops while the connections of tcp are made.
std::vector<std::string> blamed_for(int stopped, bool of_job) {
  const TemporaryFolder folder;
  std::vector<std::string> blamed(3);
  std::atomic<int> ended{0};
  const auto errors = run_ranks(3, [&](int rank) {
    RendezvousOptions options = options_for("unix:" + folder / "rendezvous", rank, 3, 0.3);
    options.of_job = of_job;
    const auto rendezvous = join_rendezvous(options);
    if (rank == stopped) {  // it has told its address, and accepts nobody there
      Endpoint here{.host = "127.0.0.1"};
      const Descriptor listener = listen_on(here);
      here.port = local_port(listener.get());
      const std::string nonce(rank == 0 ? sizeof(Token) : 0, 'n');
      (void)rendezvous->all_gather("tcp addresses", nonce + here.text());
      while (ended < 2) std::this_thread::yield();
      return;
    }
    try {
      connect_mesh(*rendezvous);
      (void)rendezvous->all_gather("connected", "");
    } catch (const CommError& error) {
      blamed[static_cast<std::size_t>(rank)] = lockstep::test::blamed_by(error);
    }
    ++ended;
  });
  CHECK(errors[static_cast<std::size_t>(stopped)] == "");
  return blamed;
}

/// A rank that has authenticated itself and waits to be admitted.
Connection wait_for_admission(const std::string& address, const Credentials& own) {
  std::string why;
  const Deadline deadline(Seconds(10));
  Connection connection;
  while (!connection)
    connection.socket =
        send_hello(Endpoint::parse(address), own, Purpose::rendezvous, deadline, why);
  expect(authenticate(connection, own, Purpose::rendezvous, deadline).kind == Reply::Kind::accepted,
         "rank {} is not accepted", own.rank);
  return connection;
}

/// Rank `victim` was killed; the others must say so, or at least rank 0 must.
void check_killed(const std::vector<Outcome>& outcomes, int victim, bool only_rank_0_knows) {
  for (int r = 0; r < static_cast<int>(outcomes.size()); ++r) {
    const Outcome& outcome = outcomes[static_cast<std::size_t>(r)];
    CAPTURE(victim);
    CAPTURE(r);
    CAPTURE(outcome.message);
    CHECK(outcome.seconds < 5);
    if (r == victim) {
      CHECK(outcome.signal == SIGKILL);
    } else {
      CHECK(outcome.code == 1);
      if (r == 0 || !only_rank_0_knows)
        CHECK(contains(outcome.message, "rank " + std::to_string(victim) + " is gone"));
    }
  }
}

TEST_CASE("rendezvous: a rank that never arrives") {
  const TemporaryFolder folder;
  const std::string address = "unix:" + folder / "rendezvous";
  const auto errors = run_ranks(
      3, [&](int rank) { join_rendezvous(options_for(address, rank == 2 ? 3 : rank, 5, 0.3)); });
  for (const std::string& error : errors) CHECK(contains(error, "ranks 2, 4 are missing"));
  CHECK(folder.empty());
  CHECK_THROWS_WITH_AS(join_rendezvous(options_for(address, 1, 2, 0.1)),
                       doctest::Contains("did not find rank 0"), CommError);
}

TEST_CASE("rendezvous: rank 0 has stopped, and listens") {
  const TemporaryFolder folder;
  const std::string address = "unix:" + folder / "rendezvous";
  const Descriptor listener = listen_on(Endpoint::parse(address));
  const auto errors =
      run_ranks(3, [&](int rank) { join_rendezvous(options_for(address, rank + 1, 4, 0.2)); });
  for (const std::string& error : errors) CHECK(contains(error, "no answer from rank 0 at unix:"));
}

TEST_CASE("rendezvous: missing or different at an exchange") {
  const TemporaryFolder folder;
  const std::string address = "unix:" + folder / "rendezvous";
  SUBCASE("missing") {
    std::atomic<int> ended{0};
    const auto errors = run_ranks(3, [&](int rank) {
      const auto rendezvous = join_rendezvous(options_for(address, rank, 3, 0.5));
      struct Count {
        std::atomic<int>& ended;
        ~Count() { ++ended; }
      };
      if (rank == 2) {
        while (ended < 2) std::this_thread::yield();
        return;
      }
      const Count count{ended};
      rendezvous->all_gather("sizes", "");
    });
    for (const std::size_t r : {0, 1})
      CHECK(contains(errors[r], "'sizes': after 0.5 s rank 2 is missing"));
  }
  SUBCASE("different") {
    const auto errors = run_ranks(3, [&](int rank) {
      join_rendezvous(options_for(address, rank, 3))->all_gather(rank == 1 ? "b" : "a", "");
    });
    for (const std::string& error : errors)
      CHECK(contains(error, "rank 1 is in 'b', rank 0 in 'a'"));
  }
  SUBCASE("gives up") {
    const auto errors = run_ranks(3, [&](int rank) {
      const auto rendezvous = join_rendezvous(options_for(address, rank, 3));
      if (rank == 2)
        rendezvous->abort("rank 2 has no data");
      else
        rendezvous->all_gather("sizes", "");
    });
    CHECK(errors[0] == "rank 2 has no data");
    CHECK(errors[1] == "rank 2 has no data");
  }
  SUBCASE("gives up without a reason") {
    const auto errors = run_ranks(3, [&](int rank) {
      const auto rendezvous = join_rendezvous(options_for(address, rank, 3));
      if (rank == 2) rendezvous->abort("");
      rendezvous->all_gather("sizes", "");
    });
    for (const std::string& error : errors) CHECK(error == "a rank gave up");
  }
}

TEST_CASE("rendezvous: of several reasons the first stays, on every rank") {
  const TemporaryFolder folder;
  const std::string address = "unix:" + folder / "rendezvous";
  std::atomic<int> stage{0}, ended{0};
  const Deadline limit(Seconds(10));
  const auto await = [&](const std::atomic<int>& what, int wanted) {
    for (; what < wanted; std::this_thread::yield()) expect(!limit.passed(), "waited in vain");
  };
  const auto errors = run_ranks(4, [&](int rank) {
    const auto rendezvous = join_rendezvous(options_for(address, rank, 4));
    const auto await_reason = [&] {
      for (; rendezvous->aborted().empty(); std::this_thread::yield())
        expect(!limit.passed(), "no reason");
    };
    if (rank == 1 || rank == 2) {  // rank 2 has not heard of rank 1's when it gives up
      await(stage, rank == 1 ? 0 : 2);
      rendezvous->abort(rank == 1 ? "one" : "two");
      stage = rank == 1 ? 1 : 3;
    } else if (rank == 0) {
      await(stage, 1);
      await_reason();
      expect(rendezvous->aborted() == "one", "{}", rendezvous->aborted());
      stage = 2;
      await(stage, 3);
      expect(rendezvous->aborted() == "one", "then {}", rendezvous->aborted());
    } else {
      await_reason();
      await(stage, 3);
      expect(rendezvous->aborted() == "one", "{}", rendezvous->aborted());
    }
    ++ended;
    await(ended, 4);  // nobody leaves before the others
  });
  for (const std::string& error : errors) CHECK(error == "");
}

TEST_CASE("rendezvous: a rank is killed in an exchange") {
  const TemporaryFolder folder;
  for (const int victim : {0, 1, 2}) {
    const auto outcomes = test::run_processes(3, [&](int rank) {
      const auto rendezvous =
          join_rendezvous(options_for("unix:" + folder / "rendezvous", rank, 3));
      exchange(*rendezvous);
      if (rank == victim) ::raise(SIGKILL);
      rendezvous->all_gather("last", "");
    });
    check_killed(outcomes, victim, false);
  }
}

TEST_CASE("rendezvous: a rank is killed while joining" * doctest::test_suite("slow")) {
  const TemporaryFolder folder;
  const std::string address = "unix:" + folder / "rendezvous";
  SUBCASE("rank 0, with greetings unanswered") {
    const auto outcomes = test::run_processes(3, [&](int rank) {
      if (rank == 0) {
        const Descriptor listener = listen_on(Endpoint::parse(address));
        std::array<Descriptor, 2> peers;
        for (Descriptor& peer : peers)
          while (!(peer = accept_from(listener.get()))) ::usleep(1000);
        ::raise(SIGKILL);
      }
      join_rendezvous(options_for(address, rank, 3));
    });
    check_killed(outcomes, 0, true);
    for (const std::size_t r : {1, 2})
      CHECK(contains(outcomes[r].message, "rank 0 no longer listens"));
  }
  SUBCASE("another, after its greeting") {
    for (const int victim : {1, 2}) {
      const auto outcomes = test::run_processes(3, [&](int rank) {
        if (rank == victim) {
          const Connection connection =
              wait_for_admission(address, options_for(address, rank, 3).credentials);
          ::usleep(50'000);
          ::raise(SIGKILL);
        }
        if (rank == 3 - victim) ::usleep(200'000);
        join_rendezvous(options_for(address, rank, 3, rank == 0 ? 20 : 0.5));
      });
      check_killed(outcomes, victim, true);
      CHECK(outcomes[0].kind == "peer");
    }
  }
  SUBCASE("another, while one waits to be admitted: the others fail in consequence") {
    const auto outcomes = test::run_processes(3, [&](int rank) {  // nobody is rank 3
      if (rank == 1) {
        const Connection connection =
            wait_for_admission(address, options_for(address, 1, 4).credentials);
        ::usleep(500'000);
        ::raise(SIGKILL);
      }
      join_rendezvous(options_for(address, rank, 4));
    });
    for (const std::size_t r : {0, 2}) {
      CHECK(outcomes[r].kind == "peer");
      CHECK(contains(outcomes[r].message, "rank 1 is gone before all ranks had joined"));
    }
  }
}

TEST_CASE("rendezvous: no descriptor is left for another connection") {
  const TemporaryFolder folder;
  const std::string address = "unix:" + folder / "rendezvous";
  const auto outcomes = test::run_processes(2, [&](int rank) {
    if (rank == 0) {
      // The first error of a process costs descriptors: UndefinedBehaviorSanitizer opens a pipe
      // when it looks a class up for the first time.
      try {
        fail<CommError>("an error before the limit, number {}", rank);
      } catch (const CommError&) {
      }
      // One descriptor more, for the listener.
      const int next = Descriptor(::open("/dev/null", O_RDONLY)).get();
      const rlimit limit{static_cast<rlim_t>(next + 1), static_cast<rlim_t>(next + 1)};
      expect(::setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
    }
    join_rendezvous(options_for(address, rank, 2, rank == 0 ? 20 : 1));
  });
  CHECK(outcomes[0].message == "[rendezvous] cannot accept a connection: Too many open files");
  CHECK_FALSE(outcomes[1].well());
}

TEST_CASE("rendezvous: who is gone") {
  const TemporaryFolder folder;
  const std::string address = "unix:" + folder / "rendezvous";
  const auto outcomes = test::run_processes(3, [&](int rank) {
    const auto rendezvous = join_rendezvous(options_for(address, rank, 3));
    exchange(*rendezvous);
    if (rank == 1) return;
    const Deadline deadline(Seconds(10));
    const int looked_for = rank == 0 ? 1 : 0;
    while (rendezvous->gone() != std::vector<int>{looked_for})
      expect(!deadline.passed(), "rank {} is not seen to be gone", looked_for);
  });
  test::check_all_well(outcomes);
}

TEST_CASE("rendezvous: a rank that stops while connections are made is to blame, and no other") {
  for (const int stopped : {0, 1, 2}) {
    CAPTURE(stopped);
    const std::string name = fmt::format("rank {} ", stopped);
    int named = 0;
    for (const std::string& blamed : blamed_for(stopped, true)) {
      CAPTURE(blamed);
      CHECK((blamed.empty() || blamed.starts_with(name)));
      named += !blamed.empty();
    }
    CHECK(named > 0);
    // The ranks of a group have numbers that say nothing to the job.
    for (const std::string& blamed : blamed_for(stopped, false)) CHECK(blamed.empty());
  }
}

// In a job that survives, the launcher may have ended this world: whoever waits in it is missed in
// the next one.
TEST_CASE("rendezvous: every wait asks again and again whether it is in vain") {
  for (const bool joined : {false, true}) {
    CAPTURE(joined);
    const TemporaryFolder folder;
    std::atomic<int> left{0};
    const auto errors = run_ranks(3, [&](int rank) {
      RendezvousOptions options = options_for("unix:" + folder / "rendezvous", rank, 3);
      options.watch = [&, asked = 0](const std::vector<int>&) mutable {
        check<PeerError>(rank == 2 || ++asked < 10, "this world has ended");
      };
      struct AtEnd {
        std::atomic<int>& left;
        ~AtEnd() { ++left; }
      } const at_end{left};
      std::shared_ptr<Rendezvous> rendezvous;
      if (rank != 2 || joined) rendezvous = join_rendezvous(options);
      if (rank != 2) rendezvous->all_gather("something", "x");
      while (rank == 2 && left < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
    for (const int rank : {0, 1}) CHECK(errors[index(rank)] != "");
    CHECK((errors[0] == "this world has ended" || errors[1] == "this world has ended"));
  }
}

}  // namespace
}  // namespace lockstep::dist
