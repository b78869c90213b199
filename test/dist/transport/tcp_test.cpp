#include <doctest/doctest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <ctime>
#include <functional>
#include <thread>

#include "dist/collectives/exercise.h"
#include "lockstep/core/hash.h"
#include "lockstep/dist/transport/transports.h"
#include "support/forked_ranks.h"

namespace lockstep::dist {
namespace {

RendezvousOptions options_at(const std::string& address, int rank, int size, double timeout = 20,
                             const Token& token = {}) {
  RendezvousOptions options;
  options.address = Endpoint::parse(address);
  options.credentials = {token, fnv1a("job"), rank, size};
  options.timeout = Seconds(timeout);
  return options;
}

/// Runs body(rendezvous) in threads and returns what each rank threw ("" if nothing).
std::vector<std::string> run_ranks(int size, double timeout,
                                   const std::function<void(std::shared_ptr<Rendezvous>)>& body,
                                   const Token& token = {}) {
  const test::TemporaryFolder folder;
  std::vector<std::string> errors(index(size));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      try {
        body(join_rendezvous(
            options_at("unix:" + folder / "rendezvous", rank, size, timeout, token)));
      } catch (const std::exception& error) {
        errors[index(rank)] = error.what();
      }
    });
  threads.clear();  // joins
  return errors;
}

/// Takes part in the exchange of addresses without listening; rank 0's address and the nonce
/// before.
std::string exchange_only(Rendezvous& rendezvous, const std::string& address) {
  const std::string nonce = rendezvous.rank() == 0 ? std::string(32, 't') : "";
  return rendezvous.all_gather("tcp addresses", nonce + address)[0];
}

/// The token of the mesh, from what rank 0 gave.
Token token_from(const std::string& given, const Token& of_job = {}) {
  return hmac(of_job, "mesh", {std::as_bytes(std::span(given)).first(32)});
}

std::pair<Connection, Reply::Kind> try_handshake(const Endpoint& address, const Credentials& own,
                                                 Purpose purpose) {
  const Deadline deadline(Seconds(5));
  std::string why;
  Connection connection{send_hello(address, own, purpose, deadline, why)};
  const Reply reply = authenticate(connection, own, purpose, deadline);
  return {std::move(connection), reply.kind};
}

TEST_CASE("tcp: nobody listens") {
  const std::string unused = test::free_address();
  std::atomic<bool> over{false};
  const auto errors = run_ranks(2, 0.3, [&](const std::shared_ptr<Rendezvous>& rendezvous) {
    if (rendezvous->rank() == 1) {
      const auto end = [&](bool*) { over = true; };
      bool on = true;
      const std::unique_ptr<bool, decltype(end)> at_end(&on, end);
      tcp_transport(rendezvous);
    } else {
      exchange_only(*rendezvous, unused);
      while (!over) std::this_thread::yield();
    }
  });
  CHECK(test::contains(errors[1], "[tcp] rank 1 did not find rank 0 at " + unused));
}

TEST_CASE("tcp: nobody connects, strangers do") {
  std::atomic<int> turned_away{0};
  std::atomic<bool> over{false};
  const auto errors = run_ranks(3, 0.5, [&](const std::shared_ptr<Rendezvous>& rendezvous) {
    if (rendezvous->rank() == 0) {
      try {
        tcp_transport(rendezvous);
      } catch (...) {
        over = true;
        throw;
      }
      return;
    }
    const std::string given = exchange_only(*rendezvous, "127.0.0.1:1");
    const Endpoint address = Endpoint::parse(given.substr(32));
    std::vector<std::jthread> strangers;
    Descriptor silent;
    if (rendezvous->rank() == 1) {
      const auto connect = [&](const Token& token, std::uint64_t job, Purpose purpose) {
        strangers.emplace_back([=, &turned_away, own = Credentials{token, job, 1, 3}] {
          const Reply::Kind reply = try_handshake(address, own, purpose).second;
          turned_away += reply == Reply::Kind::closed || reply == Reply::Kind::not_authentic;
        });
      };
      connect(token_from(given), 2, Purpose::mesh);                   // of another job
      connect(token_from(given), fnv1a("job"), Purpose::rendezvous);  // for another purpose
      connect(Token{}, fnv1a("job"), Purpose::mesh);                  // without the token
      std::string why;
      silent = connect_to(address, Deadline(Seconds(1)), why);
    }
    while (!over) std::this_thread::yield();
  });
  CHECK(test::contains(errors[0], "ranks 1, 2 are missing"));
  CHECK(turned_away == 3);
}

TEST_CASE("tcp: who has the token is accepted") {  // the control of the case above
  const auto errors = run_ranks(2, 5, [](const std::shared_ptr<Rendezvous>& rendezvous) {
    Connection peer;
    if (rendezvous->rank() == 0) {
      const auto transport = tcp_transport(rendezvous);
      std::byte byte{};
      test::expect(transport->receive(1, std::span(&byte, 1)) == 0, "bytes from nowhere");
      rendezvous->all_gather("end", "");
      return;
    }
    const std::string given = exchange_only(*rendezvous, "127.0.0.1:1");
    const Credentials own{token_from(given), fnv1a("job"), 1, 2};
    peer = try_handshake(Endpoint::parse(given.substr(32)), own, Purpose::mesh).first;
    rendezvous->all_gather("end", "");
  });
  for (const std::string& error : errors) CHECK(error == "");
}

TEST_CASE("tcp: what has been on the network is not enough where the job has a token") {
  Token secret;
  secret.fill(std::byte{7});
  for (const bool knows : {false, true}) {
    CAPTURE(knows);
    std::atomic<bool> over{false};
    const auto errors = run_ranks(
        2, 0.5,
        [&](const std::shared_ptr<Rendezvous>& rendezvous) {
          if (rendezvous->rank() == 0) {
            const std::string error = [&]() -> std::string {
              try {
                tcp_transport(rendezvous);
              } catch (const Error& e) {
                return e.what();
              }
              return "";
            }();
            over = true;
            test::expect((error == "") == knows, "{}", error);
            return;
          }
          const std::string given = exchange_only(*rendezvous, "127.0.0.1:1");
          const Credentials own{token_from(given, knows ? secret : Token{}), fnv1a("job"), 1, 2};
          const auto peer = try_handshake(Endpoint::parse(given.substr(32)), own, Purpose::mesh);
          test::expect((peer.second == Reply::Kind::accepted) == knows, "another answer");
          while (!over) std::this_thread::yield();
        },
        secret);
    for (const std::string& error : errors) CHECK(error == "");
  }
}

TEST_CASE("tcp: a rank is killed before it has connected") {
  const test::TemporaryFolder folder;
  for (const int victim : {0, 1, 2}) {
    CAPTURE(victim);
    const auto outcomes = test::run_processes(3, [&](int rank) {
      const auto rendezvous = join_rendezvous(options_at("unix:" + folder / "rendezvous", rank, 3));
      if (rank == victim) {
        const std::string address = std::string(rank == 0 ? 32 : 0, 't') + "127.0.0.1:1";
        rendezvous->all_gather("tcp addresses", address);
        ::raise(SIGKILL);
      }
      tcp_transport(rendezvous)->relax(0);
    });
    for (int r = 0; r < 3; ++r) {
      const auto& outcome = outcomes[static_cast<std::size_t>(r)];
      CAPTURE(r);
      CAPTURE(outcome.message);
      if (r == victim)
        CHECK(outcome.signal == SIGKILL);
      else if (victim == 2 || r == 0)
        CHECK(outcome.message.find("is gone") != std::string::npos);
      CHECK(outcome.seconds < 30);
    }
  }
}

TEST_CASE("tcp: several machines, here all of them at one address") {
  const std::string address = test::free_address();
  const auto outcomes = test::run_processes(3, [&](int rank) {
    RendezvousOptions options = options_at(address, rank, 3);
    options.one_machine = false;
    const auto rendezvous = join_rendezvous(options);
    test::expect(rendezvous->address().starts_with("127."), "address {}", rendezvous->address());
    HostCommunicator comm(tcp_transport(rendezvous), {Algorithm::automatic, Seconds(20)});
    testing::exercise<float>(comm, 1000);
  });
  test::check_all_well(outcomes);
}

TEST_CASE("tcp: waiting costs no processor time") {
  const test::TemporaryFolder folder;
  const auto outcomes = test::run_processes(2, [&](int rank) {
    const auto rendezvous = join_rendezvous(options_at("unix:" + folder / "rendezvous", rank, 2));
    HostCommunicator comm(tcp_transport(rendezvous), {Algorithm::automatic, Seconds(20)});
    comm.barrier("start").wait();
    if (rank == 1) ::usleep(500'000);
    const std::clock_t before = std::clock();
    comm.barrier("late").wait();
    const double used = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
    test::expect(used < 0.25, "{} s of processor time in a wait of 0.5 s", used);
  });
  test::check_all_well(outcomes);
}

}  // namespace
}  // namespace lockstep::dist
