#include "lockstep/dist/rendezvous/handshake.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <thread>

#include "support/forked_ranks.h"

namespace lockstep::dist {
namespace {

Deadline soon() { return Deadline(Seconds(10)); }

/// One that has connected, tried until somebody listens.
Descriptor connected(const Endpoint& where) {
  std::string why;
  Descriptor socket;
  for (const Deadline deadline = soon(); !socket && !deadline.passed();)
    socket = connect_to(where, deadline, why);
  return socket;
}

/// The messages of a handshake, as somebody between the two sides sees them.
struct Conversation {
  std::array<std::byte, 32> hello;
  std::array<std::byte, 48> challenge;
  std::array<std::byte, 64> proof;
  Token welcome;
  bool welcomed = false;

  void forward(const Descriptor& initiator, const Descriptor& acceptor) {
    receive_all(initiator.get(), hello, soon());
    send_all(acceptor.get(), hello, soon());
    receive_all(acceptor.get(), challenge, soon());
    send_all(initiator.get(), challenge, soon());
    receive_all(initiator.get(), proof, soon());
    send_all(acceptor.get(), proof, soon());
    welcomed = receive_all(acceptor.get(), welcome, soon()) == Transfer::done;
    send_all(initiator.get(), welcome, soon());
  }
  /// True if the acceptor accepts somebody who repeats the initiator's messages.
  bool works_again(const Descriptor& acceptor) {
    send_all(acceptor.get(), hello, soon());
    receive_all(acceptor.get(), challenge, soon());
    send_all(acceptor.get(), proof, soon());
    return receive_all(acceptor.get(), welcome, soon()) == Transfer::done;
  }
};

TEST_CASE("handshake: HMAC-SHA256") {  // test case 2 of RFC 4231
  Token key{};
  std::memcpy(key.data(), "Jefe", 4);  // HMAC fills keys up with zeros itself
  const std::string_view rest = "want for nothing?";
  const Token code = hmac(key, "what do ya ", {std::as_bytes(std::span(rest))});
  std::string hex;
  for (const std::byte byte : code) hex += fmt::format("{:02x}", static_cast<int>(byte));
  CHECK(hex == "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST_CASE("handshake: a proof is good for one connection, and gives the token away to nobody") {
  Credentials own{{}, 5, 1, 2};
  own.token.fill(std::byte{7});
  Descriptor listener = listen_on(Endpoint::parse("127.0.0.1:0"));
  const Endpoint there{{}, "127.0.0.1", local_port(listener.get())};
  std::atomic<bool> over{false};
  int peers = 0;
  std::thread listening([&] {
    Acceptor acceptor(std::move(listener), own, Purpose::rendezvous);
    while (!over) peers += static_cast<int>(acceptor.wait(Seconds(0.02)).size());
  });
  const Descriptor between = listen_on(Endpoint::parse("127.0.0.1:0"));
  Reply::Kind reply{};
  std::thread initiator([&] {
    const Endpoint here{{}, "127.0.0.1", local_port(between.get())};
    std::string why;
    Connection connection{send_hello(here, own, Purpose::rendezvous, soon(), why)};
    reply = authenticate(connection, own, Purpose::rendezvous, soon()).kind;
  });
  Descriptor inner;
  while (!(inner = accept_from(between.get()))) std::this_thread::yield();
  Conversation conversation;
  conversation.forward(inner, connected(there));
  initiator.join();
  CHECK(conversation.welcomed);  // the control
  CHECK(reply == Reply::Kind::accepted);
  CHECK(std::memcmp(conversation.hello.data(), own.token.data(), 32) != 0);
  CHECK(std::memcmp(conversation.proof.data() + 32, own.token.data(), 32) != 0);
  CHECK_FALSE(conversation.works_again(connected(there)));
  over = true;
  listening.join();
  CHECK(peers == 1);
}

TEST_CASE("handshake: many connections at once, more than handshakes run at a time") {
  const Credentials own{{}, 5, 1, 2};
  Descriptor listener = listen_on(Endpoint::parse("127.0.0.1:0"));
  const Endpoint there{{}, "127.0.0.1", local_port(listener.get())};
  constexpr int initiators = 150;
  std::vector<Connection> connections;
  for (int i = 0; i < initiators; ++i) {
    std::string why;
    connections.push_back({send_hello(there, own, Purpose::rendezvous, soon(), why)});
  }
  // On a slow machine a handshake may end because a newer one came: its initiator then tries again.
  const Deadline deadline(Seconds(60));
  std::atomic<int> accepted{0}, other_replies{0};
  std::vector<std::jthread> threads;
  for (Connection& connection : connections)
    threads.emplace_back([&] {
      while (!deadline.passed()) {
        switch (authenticate(connection, own, Purpose::rendezvous, deadline).kind) {
          case Reply::Kind::accepted: ++accepted; return;
          case Reply::Kind::closed: break;
          default: ++other_replies; return;
        }
        std::string why;
        connection.socket = send_hello(there, own, Purpose::rendezvous, deadline, why);
      }
    });
  Acceptor acceptor(std::move(listener), own, Purpose::rendezvous);
  int peers = 0;
  while (peers < initiators && !deadline.passed())
    peers += static_cast<int>(acceptor.wait(Seconds(0.02)).size());
  threads.clear();  // joins
  CHECK(peers == initiators);
  CHECK(accepted == initiators);
  CHECK(other_replies == 0);
}

}  // namespace
}  // namespace lockstep::dist
