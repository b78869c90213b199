// The transports between processes, shm and tcp, must pass the same tests.

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <thread>

#include "exercise.h"
#include "lockstep/dist/hash.h"
#include "lockstep/dist/shm.h"
#include "lockstep/dist/tcp.h"
#include "processes.h"

namespace lockstep::dist {
namespace {

using test::contains;
using test::expect;
using test::Outcome;
using test::TemporaryFolder;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::int64_t large = 1'000'000;
#else
constexpr std::int64_t large = 10'000'000;
#endif

std::unique_ptr<Transport> make(const std::string& name, std::shared_ptr<Store> store) {
  return name == "shm" ? shm_transport(std::move(store)) : tcp_transport(std::move(store));
}

/// Runs body(transport) in `size` processes that are connected by `name`.
std::vector<Outcome> run(const std::string& name, int size,
                         const std::function<void(std::unique_ptr<Transport>)>& body,
                         double timeout = 20) {
  const TemporaryFolder folder;
  const int left_before = test::entries("/dev/shm");
  const auto outcomes = test::run_processes(size, [&](int rank) {
    StoreOptions options;
    options.address = Endpoint::parse("unix:" + folder / "store");
    options.credentials = {{}, fnv1a("job"), rank, size};
    options.timeout = Seconds(timeout);
    body(make(name, join_store(options)));
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

TEST_CASE("process transports: collectives") {
  for (const std::string name : {"shm", "tcp"}) {
    for (const int size : {1, 2, 3, 4, 7}) {
      for (const Algorithm algorithm : {Algorithm::direct, Algorithm::ring}) {
        CAPTURE(name);
        CAPTURE(size);
        CAPTURE(name_of(algorithm));
        test::check_all_well(run(name, size, [&](std::unique_ptr<Transport> transport) {
          HostCommunicator comm(std::move(transport), {algorithm, Seconds(30)});
          for (const std::int64_t count : {0, 1, 5, 1001}) testing::exercise<float>(comm, count);
          testing::exercise<double>(comm, 257);
          testing::exercise<std::int64_t>(comm, 33);
          if (algorithm == Algorithm::direct) {
            testing::exercise_tree_order(comm, Tensor::empty({999}));
            testing::exercise_tree_order(comm, comm.allocate(999, DType::f32));
          }
        }));
      }
    }
  }
}

TEST_CASE("process transports: ten million elements") {
  for (const std::string name : {"shm", "tcp"}) {
    for (const Algorithm algorithm : {Algorithm::ring, Algorithm::direct}) {
      CAPTURE(name);
      CAPTURE(name_of(algorithm));
      test::check_all_well(run(name, 2, [&](std::unique_ptr<Transport> transport) {
        HostCommunicator comm(std::move(transport), {algorithm, Seconds(30)});
        testing::exercise_all_reduce<float>(comm, comm.allocate(large + 1, DType::f32));
        testing::exercise_all_reduce<float>(comm, Tensor::empty({large + 1}));
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

TEST_CASE("process transports: kill -9 in the middle of collectives") {
  for (const std::string name : {"shm", "tcp"}) {
    for (const int size : {2, 3, 7}) {
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
            CHECK(contains(outcome.message, "rank " + std::to_string(victim) + " is gone"));
          }
          CHECK(outcome.seconds < 10);
        }
      }
    }
  }
}

TEST_CASE("process transports: a stopped rank is waited for, or timed out") {
  for (const std::string name : {"shm", "tcp"}) {
    for (const double timeout : {0.3, 20.0}) {
      CAPTURE(name);
      CAPTURE(timeout);
      const auto outcomes = run(name, 2, [&](std::unique_ptr<Transport> transport) {
        const int rank = transport->rank();
        HostCommunicator comm(std::move(transport), {Algorithm::automatic, Seconds(timeout)});
        comm.barrier("start").wait();
        if (rank == 1) ::usleep(600'000);
        testing::exercise<float>(comm, 100);
      });
      if (timeout > 1)
        test::check_all_well(outcomes);
      else
        CHECK(contains(outcomes[0].message, "timed out"));
    }
  }
}

}  // namespace
}  // namespace lockstep::dist
