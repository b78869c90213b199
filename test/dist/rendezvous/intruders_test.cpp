// Connections that do not belong to the job, or do not fit into it.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>

#include "dist/rendezvous/rendezvous_support.h"

namespace lockstep::dist {
namespace {

using namespace testing;

TEST_CASE("rendezvous: strangers are closed and do not disturb") {
  const TemporaryFolder folder;
  for (const std::string& address : {"unix:" + folder / "rendezvous", test::free_address()}) {
    CAPTURE(address);
    std::vector<int> closed_in_time(3, 0);  // not bool: threads write side by side
    std::vector<std::thread> strangers;
    std::atomic<int> ready{0};
    const std::vector<std::string> garbage{
        "GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: a browser that likes long names\r\n\r\n",
        std::string(64, '\0'), std::string(1000, '\xff')};
    for (std::size_t i = 0; i < garbage.size(); ++i)
      strangers.emplace_back([&, i] {
        const Descriptor socket = stranger(address);
        ++ready;
        write_text(socket, garbage[i]);
        closed_in_time[i] = gets_closed(socket, 4);
      });
    const auto errors = run_ranks(3, [&](int rank) {
      while (rank == 2 && ready < 3) std::this_thread::yield();  // the strangers come first
      exchange(*join_rendezvous(options_for(address, rank, 3)));
    });
    for (std::thread& thread : strangers) thread.join();
    for (const std::string& error : errors) CHECK(error == "");
    CHECK(std::count(closed_in_time.begin(), closed_in_time.end(), 1) == 3);
  }
}

TEST_CASE("rendezvous: silent, slow and many connections") {
  const TemporaryFolder folder;
  const std::string address = "unix:" + folder / "rendezvous";
  std::atomic<bool> crowd_is_there{false};
  std::thread crowd([&] {
    std::vector<Descriptor> idle;
    for (int i = 0; i < 300; ++i) {
      idle.push_back(stranger(address));
      if (i % 3 == 0) write_text(idle.back(), "Lock");  // half a greeting
    }
    crowd_is_there = true;
    const Deadline enough(Seconds(0.5));
    while (!enough.passed()) {
      write_text(idle.back(), "x");
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  });
  const auto errors = run_ranks(3, [&](int rank) {
    while (rank != 0 && !crowd_is_there) std::this_thread::yield();
    exchange(*join_rendezvous(options_for(address, rank, 3)));
  });
  crowd.join();
  for (const std::string& error : errors) CHECK(error == "");
}

TEST_CASE("rendezvous: a wrong token or another job") {
  const TemporaryFolder folder;
  const std::string address = "unix:" + folder / "rendezvous";
  const auto errors = run_ranks(4, [&](int rank) {
    RendezvousOptions options = options_for(address, rank % 2, 2, 0.5);
    if (rank == 2 || rank == 3) options.credentials.rank = 1;
    if (rank == 2) options.credentials.token = token_of(8);
    if (rank == 3) options.credentials.job = fnv1a("other job");
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    exchange(*join_rendezvous(options));
  });
  CHECK(errors[0] == "");
  CHECK(errors[1] == "");
  for (const std::string& error : {errors[2], errors[3]}) CHECK(contains(error, "rank 1"));
}

TEST_CASE("rendezvous: an impostor in the place of rank 0") {
  const std::string challenge = "Lockstep" + std::string("\x02\0\0\0\0\0\0\0", 8) +
                                std::string(32, 'n');  // anybody can make one
  for (const std::string& answer :
       {std::string(512, 'x'), challenge + std::string(32, 'x') + std::string(512, '\x01')}) {
    const TemporaryFolder folder;
    const std::string address = "unix:" + folder / "rendezvous";
    const Descriptor listener = listen_on(Endpoint::parse(address));
    std::thread impostor([&] {
      Descriptor peer;
      while (!(peer = accept_from(listener.get()))) std::this_thread::yield();
      write_text(peer, answer);
      std::array<std::byte, 1000> heard;  // more than a caller says: until it leaves
      receive_all(peer.get(), heard, Deadline(Seconds(5)));
    });
    CHECK_THROWS_WITH_AS(join_rendezvous(options_for(address, 1, 2)),
                         doctest::Contains("does not belong to this job"), CommError);
    impostor.join();
  }
}

TEST_CASE("rendezvous: a stale socket is replaced, other files are not touched") {
  const TemporaryFolder folder;
  const std::string address = "unix:" + folder / "rendezvous";
  {
    const Descriptor dead = listen_on(Endpoint::parse(address));
    struct stat status {};
    REQUIRE(::stat((folder / "rendezvous").c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0600);
  }
  const auto errors =
      run_ranks(2, [&](int rank) { exchange(*join_rendezvous(options_for(address, rank, 2))); });
  for (const std::string& error : errors) CHECK(error == "");

  const Descriptor file(::open((folder / "rendezvous").c_str(), O_CREAT | O_WRONLY, 0600));
  CHECK_THROWS_WITH_AS(join_rendezvous(options_for(address, 0, 2)), doctest::Contains("in the way"),
                       CommError);
  CHECK(::access((folder / "rendezvous").c_str(), F_OK) == 0);
}

TEST_CASE("rendezvous: the address is taken") {
  const Descriptor other = listen_on(Endpoint::parse("127.0.0.1:0"));
  const std::string address = "127.0.0.1:" + std::to_string(local_port(other.get()));
  CHECK_THROWS_WITH_AS(join_rendezvous(options_for(address, 0, 2)),
                       doctest::Contains(address.c_str()), CommError);
  const TemporaryFolder folder;
  const Descriptor rank_0 = listen_on(Endpoint::parse("unix:" + folder / "rendezvous"));
  CHECK_THROWS_WITH_AS(join_rendezvous(options_for("unix:" + folder / "rendezvous", 0, 2)),
                       doctest::Contains("another rank 0"), CommError);
}

TEST_CASE("rendezvous: a rank that comes twice, does not fit, or has another world in mind") {
  const TemporaryFolder folder;
  const std::string address = "unix:" + folder / "rendezvous";
  struct Case {
    int rank, size;
    const char* message;
  };
  for (const Case& wrong : {Case{1, 3, "rank 1 has joined twice"},
                            Case{2, 4, "rank 2 expects a world of 4, rank 0 one of 3"},
                            Case{5, 6, "rank 5 expects a world of 6, rank 0 one of 3"}}) {
    CAPTURE(wrong.message);
    const auto errors = run_ranks(3, [&](int rank) {
      if (rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(100));
      const bool culprit = rank == 2;
      join_rendezvous(options_for(address, culprit ? wrong.rank : rank, culprit ? wrong.size : 3));
    });
    for (const std::string& error : errors) CHECK(contains(error, wrong.message));
    CHECK(folder.empty());
  }
}

TEST_CASE("rendezvous: another protocol version") {
  const TemporaryFolder folder;
  const std::string address = "unix:" + folder / "rendezvous";
  const auto errors = run_ranks(2, [&](int rank) {
    if (rank == 0) {
      join_rendezvous(options_for(address, 0, 2));
      return;
    }
    // By hand, as dist/rendezvous/handshake.h draws it: magic, version, purpose, job, rank, size.
    const std::uint64_t job = fnv1a("job");
    std::string hello = "Lockstep" + std::string("\x63\0\0\0\x01\0\0\0", 8) +
                        std::string(reinterpret_cast<const char*>(&job), 8) +
                        std::string("\x01\0\0\0\x02\0\0\0", 8);
    Descriptor socket = stranger(address);
    write_text(socket, hello);
    std::array<std::byte, 48> challenge;
    const Deadline deadline(Seconds(10));
    expect(receive_all(socket.get(), challenge, deadline) == Transfer::done, "no challenge");
    const Token nonce = token_of(3);
    const Token code =
        hmac(token_of(7), "initiator", {std::as_bytes(std::span(hello)), challenge, nonce});
    send_all(socket.get(), nonce, deadline);
    send_all(socket.get(), code, deadline);
    Token welcome;
    expect(receive_all(socket.get(), welcome, deadline) == Transfer::done, "not welcome");
    Connection connection{std::move(socket)};
    connection.receiving = KeyStream(hmac(token_of(7), "frames of the acceptor",
                                          {std::as_bytes(std::span(hello)), challenge, nonce}));
    throw Error(read_admission(connection, deadline).refusal);
  });
  for (const std::string& error : errors) {
    CHECK(contains(error, "version 99"));
    CHECK(contains(error, fmt::format("version {}", protocol_version)));
  }
}

TEST_CASE("rendezvous: rank 0 speaks another protocol version") {
  const TemporaryFolder folder;
  const std::string address = "unix:" + folder / "rendezvous";
  const Descriptor listener = listen_on(Endpoint::parse(address));
  const auto errors = run_ranks(2, [&](int rank) {
    if (rank == 1) {
      join_rendezvous(options_for(address, 1, 2));
      return;
    }
    Descriptor socket;
    while (!(socket = accept_from(listener.get()))) std::this_thread::yield();
    const Deadline deadline(Seconds(10));
    std::array<std::byte, 32> hello;
    std::array<std::byte, 64> proof;
    receive_all(socket.get(), hello, deadline);
    const std::string challenge =
        "Lockstep" + std::string("\x63\0\0\0\0\0\0\0", 8) + std::string(32, 'n');
    write_text(socket, challenge);
    receive_all(socket.get(), proof, deadline);
    const Token welcome =
        hmac(token_of(7), "acceptor",
             {hello, std::as_bytes(std::span(challenge)), std::span(proof).first(32)});
    send_all(socket.get(), welcome, deadline);
  });
  CHECK(contains(errors[1],
                 "speaks protocol version 99, not version " + std::to_string(protocol_version)));
}

TEST_CASE("rendezvous: another job's rank is turned away, whatever its version") {
  // Both jobs have no secret, as under mpirun: their proofs are right.
  for (const char version : {1, 3, 4, 99}) {
    CAPTURE(static_cast<int>(version));
    const std::string address = test::free_address();
    bool closed = false;
    const auto errors = run_ranks(3, [&](int rank) {
      RendezvousOptions options = options_for(address, rank, 2);
      options.credentials.token = {};
      if (rank == 0) return exchange(*join_rendezvous(options));
      if (rank == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        return exchange(*join_rendezvous(options));
      }
      const std::uint64_t job = fnv1a("other job");
      const std::string hello = "Lockstep" + std::string({version, 0, 0, 0, 1, 0, 0, 0}) +
                                std::string(reinterpret_cast<const char*>(&job), 8) +
                                std::string("\x01\0\0\0\x02\0\0\0", 8);
      const Descriptor socket = stranger(address);
      const Deadline deadline(Seconds(10));
      write_text(socket, hello);
      std::array<std::byte, 48> challenge;
      receive_all(socket.get(), challenge, deadline);
      const Token nonce = token_of(3);
      send_all(socket.get(), nonce, deadline);
      send_all(socket.get(),
               hmac(Token{}, "initiator", {std::as_bytes(std::span(hello)), challenge, nonce}),
               deadline);
      closed = gets_closed(socket, 4);
    });
    for (const std::string& error : errors) CHECK(error == "");
    CHECK(closed);
  }
}

}  // namespace
}  // namespace lockstep::dist
