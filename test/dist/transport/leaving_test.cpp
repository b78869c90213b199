// A rank that sends its last bytes and leaves at once: they arrive, however the looks of the
// receiver fall between the two.

#include <doctest/doctest.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <thread>

#include "lockstep/core/hash.h"
#include "lockstep/dist/transport/transports.h"
#include "support/forked_ranks.h"

using namespace lockstep;
using namespace lockstep::dist;

namespace {

std::shared_ptr<Rendezvous> join(const test::TemporaryFolder& folder, int rank, int size) {
  RendezvousOptions options;
  options.address = Endpoint::parse("unix:" + folder / "rendezvous");
  options.credentials = {{}, fnv1a("job"), rank, size};
  options.timeout = Seconds(20);
  return join_rendezvous(options);
}

}  // namespace

TEST_CASE("threads: nothing is lost between two looks at a rank that leaves") {
  constexpr int rounds = 4000;
  std::vector<std::vector<std::unique_ptr<Transport>>> worlds;
  for (int round = 0; round < rounds; ++round)
    worlds.push_back(threads_transports(2, {.stream_bytes = 16}));
  std::atomic<int> receiver_at{-1}, sender_at{-1};
  const auto meet = [](std::atomic<int>& mine, const std::atomic<int>& other, int round) {
    mine = round;
    while (other < round) std::this_thread::yield();
  };
  std::jthread sender([&] {
    const std::array<std::byte, 3> last{std::byte{1}, std::byte{2}, std::byte{3}};
    for (int round = 0; round < rounds; ++round) {
      std::unique_ptr<Transport> transport = std::move(worlds[index(round)][1]);
      meet(sender_at, receiver_at, round);
      for (int wait = 0; wait < round % 20; ++wait) (void)transport->now();
      transport->send(0, last);
    }
  });
  int lost = 0;
  for (int round = 0; round < rounds; ++round) {
    Transport& transport = *worlds[index(round)][0];
    std::array<std::byte, 3> got;
    meet(receiver_at, sender_at, round);
    try {
      while (transport.receive(1, got) == 0) {
      }
    } catch (const PeerError&) {
      ++lost;
    }
  }
  CHECK(lost == 0);
}

TEST_CASE("shm: nothing is lost of what a rank sent before it was killed") {
  const test::TemporaryFolder folder;
  const auto outcomes = test::run_processes(2, [&](int rank) {
    const auto transport = shm_transport(join(folder, rank, 2));
    std::array<std::byte, 3> bytes{std::byte{1}, std::byte{2}, std::byte{3}};
    if (rank == 1) {
      transport->send(0, bytes);
      ::raise(SIGKILL);
    }
    ::usleep(300'000);            // longer than it takes to die
    transport->relax(1'000'000);  // sees that the other is gone, which alone is no error yet
    bytes = {};
    test::expect(transport->receive(1, bytes) == 3 && bytes[2] == std::byte{3}, "lost");
    test::expect_error<PeerError>("rank 1 is gone", [&] {
      for (unsigned round = 0;; ++round)
        if (transport->receive(1, bytes) == 0) transport->relax(round);
    });
  });
  CHECK(outcomes[0].message == "");
  CHECK(outcomes[0].well());
  CHECK(outcomes[1].signal == SIGKILL);
}

TEST_CASE("shm: a rank that leaves in good order is not called gone, however long it takes") {
  const test::TemporaryFolder folder;
  const auto outcomes = test::run_processes(2, [&](int rank) {
    std::shared_ptr<Rendezvous> meeting = join(folder, rank, 2);
    if (rank == 1) {  // its connections close, and a second later the rest of the transport ends
      Rendezvous* const it = meeting.get();
      meeting = {it, [inner = std::move(meeting)](Rendezvous*) mutable {
                   inner.reset();
                   ::sleep(1);
                 }};
    }
    const auto transport = shm_transport(std::move(meeting));
    if (rank == 1) return;
    std::array<std::byte, 3> bytes{};
    test::expect_error<PeerError>("rank 1 left", [&] {
      for (unsigned round = 1'000'000;; ++round)
        if (transport->receive(1, bytes) == 0) transport->relax(round);
    });
    test::expect_error<PeerError>("rank 1 left", [&] { transport->send(1, bytes); });
  });
  test::check_all_well(outcomes);
}

TEST_CASE("shm: who leaves because of a reason does not hide it from those who wait in allocate") {
  const test::TemporaryFolder folder;
  const auto outcomes = test::run_processes(3, [&](int rank) {
    const auto transport = shm_transport(join(folder, rank, 3));
    if (rank == 2) transport->allocate(100);
    if (rank == 0)
      while (true) transport->send(1, {});  // until the reason is there; then it leaves at once
    ::usleep(200'000);
    transport->abort("rank 1 found a NaN");
    ::usleep(500'000);
  });
  CHECK(outcomes[0].message == "rank 1 found a NaN");
  CHECK(outcomes[2].message == "rank 1 found a NaN");
}

TEST_CASE("tcp: who leaves with unread bytes still delivers its own") {
  Descriptor listener = listen_on(Endpoint::parse("127.0.0.1:0"));
  std::string why;
  const Endpoint where{.host = "127.0.0.1", .port = local_port(listener.get())};
  Descriptor peer = connect_to(where, Deadline(Seconds(5)), why);
  Descriptor own = accept_from(listener.get());
  REQUIRE(own);
  const Deadline deadline(Seconds(20));
  std::vector<std::byte> many(1 << 20);
  REQUIRE(send_all(peer.get(), std::span(many).first(20'000), deadline) == Transfer::done);
  std::size_t sent = 0, got = 0;
  {
    RendezvousOptions alone;
    alone.credentials = {{}, 1, 0, 1};
    std::vector<Connection> connections(2);
    connections[1] = {std::move(own), {}, {}};
    const auto transport = tcp_transport(join_rendezvous(alone), std::move(connections));
    while (const std::size_t count = transport->send(1, std::span(many).subspan(sent % 1000)))
      sent += count;  // until no buffer takes more: a part of it is still on this side
  }
  while (wait_for(peer.get(), POLLIN, deadline)) {
    const std::ptrdiff_t count = receive_some(peer.get(), many);
    if (count == peer_closed) break;
    got += static_cast<std::size_t>(count);
  }
  CHECK(sent > 0);
  CHECK(got >= sent);
}
