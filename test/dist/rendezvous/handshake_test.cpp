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

/// What a caller and a acceptor say to each other, as somebody between them hears it.
struct Conversation {
  std::array<std::byte, 32> hello;
  std::array<std::byte, 48> challenge;
  std::array<std::byte, 64> proof;
  Token welcome;
  bool welcomed = false;

  void carry(const Descriptor& caller, const Descriptor& acceptor) {
    receive_all(caller.get(), hello, soon());
    send_all(acceptor.get(), hello, soon());
    receive_all(acceptor.get(), challenge, soon());
    send_all(caller.get(), challenge, soon());
    receive_all(caller.get(), proof, soon());
    send_all(acceptor.get(), proof, soon());
    welcomed = receive_all(acceptor.get(), welcome, soon()) == Transfer::done;
    send_all(caller.get(), welcome, soon());
  }
  /// True if the acceptor lets in somebody who repeats the caller's part.
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
  std::thread caller([&] {
    const Endpoint here{{}, "127.0.0.1", local_port(between.get())};
    std::string why;
    const Descriptor socket = greet(here, own, Purpose::rendezvous, soon(), why);
    reply = prove(socket.get(), own, Purpose::rendezvous, soon()).kind;
  });
  Descriptor inner;
  while (!(inner = accept_from(between.get()))) std::this_thread::yield();
  Conversation conversation;
  conversation.carry(inner, connected(there));
  caller.join();
  CHECK(conversation.welcomed);  // the control
  CHECK(reply == Reply::Kind::accepted);
  CHECK(std::memcmp(conversation.hello.data(), own.token.data(), 32) != 0);
  CHECK(std::memcmp(conversation.proof.data() + 32, own.token.data(), 32) != 0);
  CHECK_FALSE(conversation.works_again(connected(there)));
  over = true;
  listening.join();
  CHECK(peers == 1);
}

TEST_CASE("handshake: many callers at once, more than are heard at a time") {
  const Credentials own{{}, 5, 1, 2};
  Descriptor listener = listen_on(Endpoint::parse("127.0.0.1:0"));
  const Endpoint there{{}, "127.0.0.1", local_port(listener.get())};
  constexpr int callers = 150;
  std::vector<Descriptor> sockets;
  for (int i = 0; i < callers; ++i) {
    std::string why;
    sockets.push_back(greet(there, own, Purpose::rendezvous, soon(), why));
  }
  std::vector<Reply::Kind> replies(callers);
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < sockets.size(); ++i)
    threads.emplace_back(
        [&, i] { replies[i] = prove(sockets[i].get(), own, Purpose::rendezvous, soon()).kind; });
  Acceptor acceptor(std::move(listener), own, Purpose::rendezvous);
  int peers = 0;
  for (const Deadline deadline = soon(); peers < callers && !deadline.passed();)
    peers += static_cast<int>(acceptor.wait(Seconds(0.02)).size());
  threads.clear();  // joins
  CHECK(peers == callers);
  CHECK(std::ranges::count(replies, Reply::Kind::accepted) == callers);
}

}  // namespace
}  // namespace lockstep::dist
