// Whatever comes to a port at which ranks meet, the job goes on.

#include "support/strays.h"

#include <doctest/doctest.h>

#include <atomic>

#include "dist/rendezvous/rendezvous_support.h"
#include "lockstep/dist/transport/tcp/mesh.h"

namespace lockstep::dist {
namespace {

using namespace testing;

/// With a secret, and without one, as under mpirun.
const std::vector<Token> tokens{token_of(7), Token{}};

RendezvousOptions with_token(const std::string& address, int rank, int size, const Token& token) {
  RendezvousOptions options = options_for(address, rank, size);
  options.credentials.token = token;
  return options;
}

TEST_CASE("strays: at the rendezvous") {
  for (const Token& token : tokens) {
    const std::string address = test::free_address();
    std::atomic<bool> sent{false}, over{false};
    std::thread strays([&] {
      const auto open = test::send_strays(address, Purpose::rendezvous, fnv1a("job"), token);
      sent = true;
      while (!over) std::this_thread::yield();
    });
    const auto errors = run_ranks(3, [&](int rank) {
      while (rank > 0 && !sent) std::this_thread::yield();
      exchange(*join_rendezvous(with_token(address, rank, 3, token)));
    });
    over = true;
    strays.join();
    for (const std::string& error : errors) CHECK(error == "");
  }
}

TEST_CASE("strays: at the ports of a mesh, and none is left open for them afterwards") {
  for (const Token& token : tokens) {
    const TemporaryFolder folder;
    std::vector<std::string> ports_of_mesh;
    const auto errors = run_ranks(3, [&](int rank) {
      const auto rendezvous =
          join_rendezvous(with_token("unix:" + folder / "rendezvous", rank, 3, token));
      if (rank < 2) {
        connect_mesh(*rendezvous);
        return exchange(*rendezvous);
      }
      // By hand: the last rank comes after the strays.
      auto addresses = rendezvous->all_gather("tcp addresses", "127.0.0.1:1");
      const Token mesh =
          hmac(token, "mesh", {std::as_bytes(std::span(addresses[0])).first(sizeof(Token))});
      addresses[0].erase(0, sizeof(Token));
      ConnectOptions options{.credentials = rendezvous->credentials(), .purpose = Purpose::mesh};
      options.credentials.token = mesh;
      std::vector<Connection> connections;
      for (const int lower : {0, 1}) {  // rank 1 accepts once rank 0 has admitted it
        const std::string& there = addresses[index(lower)];
        const auto open = test::send_strays(there, Purpose::mesh, fnv1a("job"), mesh);
        connections.push_back(
            connect_to_rank(lower, Endpoint::parse(there), options, Deadline(Seconds(20))));
      }
      exchange(*rendezvous);
      ports_of_mesh.assign(addresses.begin(), addresses.begin() + 2);
    });
    for (const std::string& error : errors) CHECK(error == "");
    for (const std::string& port : ports_of_mesh) {
      std::string why;
      CHECK_FALSE(connect_to(Endpoint::parse(port), Deadline(Seconds(1)), why));
    }
    CHECK(ports_of_mesh.size() == 2);
  }
}

TEST_CASE("rendezvous: nothing is left of a join that failed, and the next one starts at once") {
  const std::string port = test::free_address();
  for (const std::string& kind : {std::string("unix"), std::string("tcp")}) {
    const TemporaryFolder folder;
    const std::string address = kind == "unix" ? "unix:" + folder / "rendezvous" : port;
    const auto join = [&](int rank, int size, double timeout) {
      return [=] { exchange(*join_rendezvous(options_for(address, rank, size, timeout))); };
    };
    const auto gone = [&] {
      std::string why;
      return folder.empty() && !connect_to(Endpoint::parse(address), Deadline(Seconds(1)), why);
    };
    CHECK_THROWS_AS(join(0, 3, 0.05)(), CommError);  // the others are missing
    CHECK(gone());
    auto errors = run_ranks(2, [&](int rank) { join(rank, rank == 0 ? 2 : 3, 5)(); });
    CHECK(errors[0] != "");
    CHECK(gone());
    // A rank 0 that is killed while it waits; its socket's file remains, and is replaced.
    const auto killed = test::run_processes(1, [&](int) {
      std::thread([] {
        ::usleep(100'000);
        ::raise(SIGKILL);
      }).detach();
      join(0, 2, 20)();
    });
    CHECK(killed[0].signal == SIGKILL);
    // A job that ends with connections open: the port is free at once.
    for (int round = 0; round < 3; ++round) {
      errors = run_ranks(2, [&](int rank) { join(rank, 2, 20)(); });
      for (const std::string& error : errors) CHECK(error == "");
      CHECK(gone());
    }
  }
}

TEST_CASE("survive: a rank that listened for one world is waited for in the next") {
  for (const bool survives : {true, false}) {
    const std::string address = test::free_address();
    const auto listen = [&](unsigned char token, double seconds) {
      const Endpoint where = Endpoint::parse(address);
      ConnectOptions options{.credentials = {token_of(token), fnv1a("job"), 0, 2}};
      options.timeout = Seconds(seconds);
      return accept_higher_ranks(listen_on(where), where, options, Deadline(Seconds(seconds)));
    };
    std::atomic<bool> over{false};
    const auto errors = run_ranks(2, [&](int rank) {
      if (rank == 1) {
        ConnectOptions options{.credentials = {token_of(7), fnv1a("job"), 1, 2}};
        if (survives) options.watch = [](const std::vector<int>&) {};
        try {
          connect_to_rank(0, Endpoint::parse(address), options, Deadline(Seconds(20)));
        } catch (...) {
          over = true;
          throw;
        }
        return;
      }
      CHECK_THROWS_AS(listen(5, 0.5), CommError);  // another world, which does not come about
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      if (!over) listen(7, 20);
    });
    CHECK(errors[0] == "");
    if (survives) CHECK(errors[1] == "");
    if (!survives) CHECK(test::contains(errors[1], "rank 0 no longer listens"));
  }
}

}  // namespace
}  // namespace lockstep::dist
