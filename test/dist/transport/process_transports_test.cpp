// The transports between processes, shm and tcp, must pass the same tests.

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <thread>

#include "dist/collectives/conformance.h"
#include "lockstep/core/hash.h"
#include "lockstep/dist/transport/transports.h"
#include "lockstep/dist/world/world.h"
#include "support/forked_ranks.h"

namespace lockstep::dist {
namespace {

using test::contains;
using test::expect;
using test::Outcome;
using test::TemporaryFolder;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::int64_t large_numel = 1'000'000;
#else
constexpr std::int64_t large_numel = 10'000'000;
#endif

std::unique_ptr<Transport> make(const std::string& name, std::shared_ptr<Rendezvous> rendezvous) {
  return name == "shm" ? shm_transport(std::move(rendezvous))
                       : tcp_transport(std::move(rendezvous));
}

/// Runs body(transport) in `size` processes that are connected by `name`.
std::vector<Outcome> run(const std::string& name, int size,
                         const std::function<void(std::unique_ptr<Transport>)>& body,
                         double timeout = 20) {
  const TemporaryFolder folder;
  const int left_before = test::entries("/dev/shm");
  const auto outcomes = test::run_processes(size, [&](int rank) {
    RendezvousOptions options;
    options.address = Endpoint::parse("unix:" + folder / "rendezvous");
    options.credentials = {{}, fnv1a("job"), rank, size};
    options.timeout = Seconds(timeout);
    body(make(name, join_rendezvous(options)));
  });
  CHECK(folder.empty());
  CHECK(test::entries("/dev/shm") == left_before);
  return outcomes;
}

void send_all_of(Transport& transport, int peer, std::span<const std::byte> bytes) {
  for (unsigned round = 0; !bytes.empty();) {
    const std::size_t count = transport.send(peer, bytes);
    bytes = bytes.subspan(count);
    if (count > 0)
      round = 0;
    else
      transport.relax(round++);
  }
}

void receive_all_of(Transport& transport, int peer, std::span<std::byte> bytes) {
  for (unsigned round = 0; !bytes.empty();) {
    const std::size_t count = transport.receive(peer, bytes);
    bytes = bytes.subspan(count);
    if (count > 0)
      round = 0;
    else
      transport.relax(round++);
  }
}

std::vector<std::byte> pattern(std::size_t count, int seed) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i)
    bytes[i] = static_cast<std::byte>((i * 31 + i / 251 + static_cast<std::size_t>(seed)) & 255);
  return bytes;
}

TEST_SUITE_BEGIN("not-thread");  // it sees no race between processes

TEST_CASE("process transports: streams keep order and pairs apart") {
  for (const std::string name : {"shm", "tcp"}) {
    CAPTURE(name);
    test::check_all_well(run(name, 3, [](std::unique_ptr<Transport> transport) {
      const int rank = transport->rank();
      expect(transport->size() == 3, "size {}", transport->size());
      std::byte byte{};
      for (int peer = 0; peer < 3; ++peer) {
        if (peer == rank) continue;
        expect(transport->send(peer, {}) == 0 && transport->receive(peer, {}) == 0, "empty");
      }
      const std::size_t many = 3'000'001;  // more than any buffer: both sides must move in turn
      const int next = (rank + 1) % 3;
      const int previous = (rank + 2) % 3;
      const std::vector<std::byte> mine = pattern(many, rank);
      std::vector<std::byte> got(many);
      std::span<const std::byte> out(mine);
      std::span<std::byte> in(got);
      for (unsigned round = 0; !out.empty() || !in.empty();) {
        const std::size_t sent =
            out.empty()
                ? 0
                : transport->send(next, out.first(std::min<std::size_t>(out.size(), 77'777)));
        const std::size_t received = in.empty() ? 0 : transport->receive(previous, in);
        out = out.subspan(sent);
        in = in.subspan(received);
        if (sent + received == 0)
          transport->relax(round++);
        else
          round = 0;
      }
      expect(got == pattern(many, previous), "wrong bytes");
      expect(transport->receive(previous, std::span(&byte, 1)) == 0, "more bytes than were sent");
      send_all_of(*transport, previous, std::span(mine).first(1));  // so that nobody leaves early
      receive_all_of(*transport, next, std::span(&byte, 1));
    }));
  }
}

TEST_CASE("process transports: collectives" * doctest::test_suite("slow not-thread")) {
  for (const std::string name : {"shm", "tcp"}) {
    for (int size = 1; size <= 8; ++size) {
      CAPTURE(name);
      CAPTURE(size);
      test::check_all_well(run(name, size, [&](std::unique_ptr<Transport> transport) {
        HostCommunicator comm(std::move(transport), {Algorithm::two_shot, Seconds(30)});
        for (const std::int64_t count : {0, 1, 5, 1001}) testing::exercise<float>(comm, count);
        testing::exercise<double>(comm, 257);
        testing::exercise<std::int64_t>(comm, 33);
        testing::exercise_tree_order(comm, Tensor::empty({999}));
        testing::exercise_tree_order(comm, comm.allocate(999, DType::f32));
      }));
    }
    for (const Algorithm algorithm : testing::every_algorithm) {
      for (const int size : {2, 3, 5}) {
        CAPTURE(name);
        CAPTURE(size);
        CAPTURE(name_of(algorithm));
        test::check_all_well(run(name, size, [&](std::unique_ptr<Transport> transport) {
          HostCommunicator comm(std::move(transport), testing::options_for(algorithm, size));
          for (const std::int64_t count : {0, 1, 100'003}) testing::exercise<float>(comm, count);
        }));
      }
    }
  }
}

/// The worlds of these tests, which also come with both transports at once.
struct Kind {
  std::string transport;
  int ranks_per_node;
};
const std::vector<Kind> kinds{{"shm", max_ranks}, {"tcp", max_ranks}, {"", 2}};

std::vector<Outcome> run_world(const Kind& kind, int size,
                               const std::function<void(const World&)>& body, double limit = 60) {
  const TemporaryFolder folder;
  const bool one_machine = kind.ranks_per_node >= size;
  const std::string rendezvous =
      one_machine ? "unix:" + folder / "rendezvous" : test::free_address();
  return test::run_processes(
      size,
      [&](int rank) {
        test::set_rank_environment(rank, size, rendezvous, kind.ranks_per_node);
        body(World::join({.transport = kind.transport, .timeout = Seconds(limit / 2)}));
      },
      limit);
}

TEST_CASE("process transports: conformance" * doctest::test_suite("slow not-thread")) {
  for (const Kind& kind : kinds)
    for (int size = 1; size <= 8; ++size) {
      CAPTURE(kind.transport);
      CAPTURE(size);
      test::check_all_well(run_world(kind, size, [](const World& world) {
        testing::exercise_everything(world.communicator());
      }));
    }
}

/// More than 2 GiB in one call, and no second copy of it: 5 GB of memory in all, less for tcp.
void exercise_more_than_2_gib(const World& world) {
  Communicator& comm = world.communicator();
  const std::int64_t count = (std::int64_t{1} << 29) + 3;
  const auto number = [](int rank, std::int64_t i) { return static_cast<float>(i % 1021 + rank); };
  const auto start = comm.now();
  const auto timed = [&](const char* what, const std::function<Work()>& call) {
    const Seconds begin = comm.now();
    call().wait();
    if (comm.rank() == 0)
      std::fprintf(stderr, "%s, %s: %.2f s\n", std::string(world.transport()).c_str(), what,
                   (comm.now() - begin).count());
  };
  const Tensor data = comm.allocate(count, DType::f32);
  const auto values = data.span<float>();
  const auto expect_all = [&](const char* what, auto right) {
    for (std::int64_t i = 0; i < count; ++i)
      expect(values[static_cast<std::size_t>(i)] == right(i), "{}: element {}", what, i);
    comm.barrier("compared").wait();  // before anybody writes into it again
  };
  const auto fill = [&] {
    for (std::int64_t i = 0; i < count; ++i)
      values[static_cast<std::size_t>(i)] = number(comm.rank(), i);
  };
  fill();
  comm.barrier("filled").wait();
  timed("all_reduce", [&] { return comm.all_reduce(data, "large"); });
  expect_all("all_reduce", [&](std::int64_t i) { return number(0, i) + number(1, i); });
  fill();
  comm.barrier("filled").wait();
  timed("broadcast", [&] { return comm.broadcast(data, 1, "large"); });
  expect_all("broadcast", [&](std::int64_t i) { return number(1, i); });
  fill();
  comm.barrier("filled").wait();
  const Range own = partition(count, 2, comm.rank());
  timed("all_gather",
        [&] { return comm.all_gather(data.slice(own.begin, own.end), data, "large"); });
  expect_all("all_gather", [&](std::int64_t i) { return number(i < (count + 1) / 2 ? 0 : 1, i); });
  if (comm.rank() == 0) std::fprintf(stderr, "in all %.1f s\n", (comm.now() - start).count());
}

TEST_CASE("process transports: more than 2 GiB in one call") {
  if (!std::getenv("LOCKSTEP_LARGE")) {
    MESSAGE("skipped: it takes 5 GB of memory and a minute; LOCKSTEP_LARGE=1 runs it");
    return;
  }
  for (const std::string transport : {"shm", "tcp"}) {
    CAPTURE(transport);
    test::check_all_well(run_world({transport, 2}, 2, exercise_more_than_2_gib, 300));
  }
}

TEST_CASE("process transports: ten million elements" * doctest::test_suite("slow not-thread")) {
  for (const std::string name : {"shm", "tcp"}) {
    for (const Algorithm algorithm : {Algorithm::ring, Algorithm::two_shot}) {
      CAPTURE(name);
      CAPTURE(name_of(algorithm));
      test::check_all_well(run(name, 2, [&](std::unique_ptr<Transport> transport) {
        HostCommunicator comm(std::move(transport), {algorithm, Seconds(30)});
        testing::exercise_all_reduce<float>(comm, comm.allocate(large_numel + 1, DType::f32));
        testing::exercise_all_reduce<float>(comm, Tensor::empty({large_numel + 1}));
      }));
    }
  }
}

TEST_CASE("process transports: who ends early leaves its bytes behind") {
  for (const std::string name : {"shm", "tcp"}) {
    CAPTURE(name);
    const auto outcomes = run(name, 3, [](std::unique_ptr<Transport> transport) {
      const std::size_t count = 50'000;
      if (transport->rank() == 0) {
        send_all_of(*transport, 1, pattern(count, 0));
        send_all_of(*transport, 2, pattern(count, 0));
        return;  // at once, while the others sleep
      }
      ::usleep(100'000);
      for (unsigned i = 0; i < 5; ++i)
        transport->relax(100'000 + i);  // a peer that left is no error
      std::vector<std::byte> got(count);
      receive_all_of(*transport, 0, got);
      expect(got == pattern(count, 0), "wrong bytes");
      try {
        receive_all_of(*transport, 0, got);
      } catch (const PeerError& error) {
        expect(contains(error.what(), "rank 0 "), "{}", error.what());
        return;
      }
      fail<Error>("no error after the last byte");
    });
    test::check_all_well(outcomes);
  }
}

TEST_CASE("process transports: the reason for giving up reaches everybody") {
  for (const std::string name : {"shm", "tcp"}) {
    for (const int culprit : {0, 2}) {
      CAPTURE(name);
      CAPTURE(culprit);
      const auto outcomes = run(name, 3, [&](std::unique_ptr<Transport> transport) {
        if (transport->rank() == culprit) {
          transport->abort("rank ? found a NaN");
          transport->abort("a second reason");
          return;
        }
        std::byte byte{};
        receive_all_of(*transport, culprit, std::span(&byte, 1));
      });
      for (int r = 0; r < 3; ++r) {
        const Outcome& outcome = outcomes[static_cast<std::size_t>(r)];
        CAPTURE(r);
        if (r == culprit)
          CHECK(outcome.well());
        else
          CHECK(outcome.message == "rank ? found a NaN");
        CHECK(outcome.seconds < 5);
      }
    }
  }
}

TEST_CASE("process transports: the reason reaches who waits in allocate, though nobody leaves") {
  const auto outcomes = run("shm", 3, [&](std::unique_ptr<Transport> transport) {
    if (transport->rank() != 1) {
      transport->allocate(100);
      return;
    }
    transport->abort("rank 1 found a NaN");
    ::usleep(500'000);
  });
  for (const std::size_t r : {0, 2}) {
    CHECK(outcomes[r].message == "rank 1 found a NaN");
    CHECK(outcomes[r].seconds < 5);
  }
}

TEST_CASE("process transports: kill -9 in the middle of collectives" *
          doctest::test_suite("slow not-thread")) {
  for (const std::string name : {"shm", "tcp"}) {
    for (const int size : {2, 7}) {
      for (const int victim : {0, size - 1}) {
        CAPTURE(name);
        CAPTURE(size);
        CAPTURE(victim);
        const auto outcomes = run(name, size, [&](std::unique_ptr<Transport> transport) {
          const int rank = transport->rank();
          HostCommunicator comm(std::move(transport), {Algorithm::automatic, Seconds(20)});
          const Tensor data = comm.allocate(10'000, DType::f32);
          for (int i = 0; i < 100'000; ++i) {
            if (rank == victim && i == 50) ::raise(SIGKILL);
            comm.all_reduce(data, "bucket").wait();
          }
        });
        for (int r = 0; r < size; ++r) {
          const Outcome& outcome = outcomes[static_cast<std::size_t>(r)];
          CAPTURE(r);
          CAPTURE(outcome.message);
          if (r == victim) {
            CHECK(outcome.signal == SIGKILL);
          } else {
            CHECK(outcome.kind == "peer");
            CHECK(outcome.message.starts_with(fmt::format("[all_reduce] rank {}, #", r)));
            CHECK(contains(outcome.message, "rank " + std::to_string(victim) + " is gone"));
          }
          CHECK(outcome.seconds < 10);
        }
      }
    }
  }
}

TEST_CASE("process transports: a stopped rank is waited for, or timed out" *
          doctest::test_suite("slow not-thread")) {
  for (const std::string name : {"shm", "tcp"}) {
    for (const double timeout : {0.3, 20.0}) {
      CAPTURE(name);
      CAPTURE(timeout);
      const auto outcomes = run(name, 2, [&](std::unique_ptr<Transport> transport) {
        const int rank = transport->rank();
        HostCommunicator comm(std::move(transport), {Algorithm::automatic, Seconds(timeout)});
        comm.barrier("start").wait();
        if (rank == 1 && timeout > 1) ::usleep(600'000);
        // Until rank 0 has given up, which throws here: however slow this machine is.
        while (rank == 1 && timeout < 1) comm.transport().relax(1000);
        testing::exercise<float>(comm, 100);
      });
      if (timeout > 1)
        test::check_all_well(outcomes);
      else
        CHECK(contains(outcomes[0].message, "timed out"));
    }
  }
}

TEST_SUITE_END();

}  // namespace
}  // namespace lockstep::dist
