#include "lockstep/dist/transport/tcp.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <ctime>
#include <functional>
#include <thread>

#include "dist/collectives/exercise.h"
#include "lockstep/core/hash.h"
#include "support/forked_ranks.h"

namespace lockstep::dist {
namespace {

/// A rendezvous that answers from a script: what the mesh does with strangers and wrong addresses.
class ScriptedStore final : public Rendezvous {
 public:
  ScriptedStore(int rank, std::vector<std::string> addresses, double timeout)
      : credentials_{{}, 1, rank, static_cast<int>(addresses.size())},
        addresses_(std::move(addresses)),
        timeout_(timeout) {}
  int rank() const override { return credentials_.rank; }
  int size() const override { return credentials_.size; }
  std::vector<std::string> all_gather(std::string_view, std::string_view mine) override {
    addresses_[static_cast<std::size_t>(rank())] = mine;
    on_address(std::string(mine));  // rank 0's begins with a token
    return addresses_;
  }
  int share_descriptor(std::string_view, int descriptor) override { return descriptor; }
  std::string address() const override { return "127.0.0.1"; }
  std::vector<int> gone() override { return {}; }
  void abort(std::string_view) noexcept override {}
  std::string aborted() override { return ""; }
  const Credentials& credentials() const override { return credentials_; }
  Seconds timeout() const override { return timeout_; }

  std::function<void(std::string)> on_address = [](const std::string&) {};

 private:
  Credentials credentials_;
  std::vector<std::string> addresses_;
  Seconds timeout_;
};

/// What proves to rank 0's mesh that one belongs to it, from what rank 0 gave to the rendezvous.
Token token_from(const std::string& given) {
  return hmac(Token{}, "mesh", {std::as_bytes(std::span(given)).first(32)});
}

std::pair<Descriptor, Reply::Kind> call_door(const Endpoint& address, const Credentials& own,
                                             Purpose purpose) {
  const Deadline deadline(Seconds(5));
  std::string why;
  Descriptor socket = greet(address, own, purpose, deadline, why);
  const Reply reply = prove(socket.get(), own, purpose, deadline);
  return {std::move(socket), reply.kind};
}

TEST_CASE("tcp: nobody listens") {
  std::string unused;
  {
    const Descriptor listener = listen_on(Endpoint::parse("127.0.0.1:0"));
    unused = "127.0.0.1:" + std::to_string(local_port(listener.get()));
  }
  const auto rendezvous = std::make_shared<ScriptedStore>(
      1, std::vector<std::string>{std::string(32, 't') + unused, "127.0.0.1:1"}, 0.2);
  CHECK_THROWS_WITH_AS(tcp_transport(rendezvous),
                       doctest::Contains(("rank 1 cannot connect to rank 0 at " + unused).c_str()),
                       CommError);
}

TEST_CASE("tcp: nobody calls, strangers do") {
  const std::string nobody = "127.0.0.1:1";
  const auto rendezvous =
      std::make_shared<ScriptedStore>(0, std::vector<std::string>{"", nobody, nobody}, 0.5);
  std::atomic<int> turned_away{0};
  std::vector<std::jthread> strangers;
  Descriptor silent;
  rendezvous->on_address = [&](const std::string& given) {
    const Endpoint address = Endpoint::parse(given.substr(32));
    const auto call = [&](const Token& token, std::uint64_t job, Purpose purpose) {
      strangers.emplace_back([=, &turned_away, own = Credentials{token, job, 1, 3}] {
        const Reply::Kind answer = call_door(address, own, purpose).second;
        turned_away += answer == Reply::Kind::closed || answer == Reply::Kind::stranger;
      });
    };
    call(token_from(given), 2, Purpose::mesh);        // of another job
    call(token_from(given), 1, Purpose::rendezvous);  // for another purpose
    call(Token{}, 1, Purpose::mesh);                  // without the token
    std::string why;
    silent = connect_to(address, Deadline(Seconds(1)), why);
  };
  CHECK_THROWS_WITH_AS(tcp_transport(rendezvous), doctest::Contains("ranks 1, 2 are missing"),
                       CommError);
  strangers.clear();  // joins
  CHECK(turned_away == 3);

  // The control: whoever has all of it is let in.
  const auto other = std::make_shared<ScriptedStore>(0, std::vector<std::string>{"", nobody}, 5);
  Descriptor peer;
  std::jthread caller;
  other->on_address = [&](const std::string& given) {
    caller = std::jthread([&peer, given] {
      peer =
          call_door(Endpoint::parse(given.substr(32)), {token_from(given), 1, 1, 2}, Purpose::mesh)
              .first;
    });
  };
  const auto transport = tcp_transport(other);
  caller.join();
  std::byte byte{};
  CHECK(transport->receive(1, std::span(&byte, 1)) == 0);
}

TEST_CASE("tcp: a rank is killed before it has connected") {
  const test::TemporaryFolder folder;
  for (const int victim : {0, 1, 2}) {
    CAPTURE(victim);
    const auto outcomes = test::run_processes(3, [&](int rank) {
      RendezvousOptions options;
      options.address = Endpoint::parse("unix:" + folder / "rendezvous");
      options.credentials = {{}, fnv1a("job"), rank, 3};
      options.timeout = Seconds(20);
      const auto rendezvous = join_rendezvous(options);
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
  std::string address;
  {
    const Descriptor listener = listen_on(Endpoint::parse("127.0.0.1:0"));
    address = "127.0.0.1:" + std::to_string(local_port(listener.get()));
  }
  const auto outcomes = test::run_processes(3, [&](int rank) {
    RendezvousOptions options;
    options.address = Endpoint::parse(address);
    options.one_machine = false;
    options.credentials = {{}, fnv1a("job"), rank, 3};
    options.timeout = Seconds(20);
    const auto rendezvous = join_rendezvous(options);
    test::expect(rendezvous->address() == "127.0.0.1", "address {}", rendezvous->address());
    HostCommunicator comm(tcp_transport(rendezvous), {Algorithm::automatic, Seconds(20)});
    testing::exercise<float>(comm, 1000);
  });
  test::check_all_well(outcomes);
}

TEST_CASE("tcp: waiting costs no processor time") {
  const test::TemporaryFolder folder;
  const auto outcomes = test::run_processes(2, [&](int rank) {
    RendezvousOptions options;
    options.address = Endpoint::parse("unix:" + folder / "rendezvous");
    options.credentials = {{}, fnv1a("job"), rank, 2};
    options.timeout = Seconds(20);
    HostCommunicator comm(tcp_transport(join_rendezvous(options)),
                          {Algorithm::automatic, Seconds(20)});
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
