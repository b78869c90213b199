#pragma once
/// Connections that do not belong to a job, of every kind that a port on a network meets.

#include <sys/socket.h>

#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/core/hash.h"
#include "lockstep/dist/rendezvous/handshake.h"

namespace lockstep::test {

/// Tries until somebody listens.
inline dist::Descriptor stray_connection(const std::string& address) {
  std::string why;
  const dist::Deadline deadline(dist::Seconds(10));
  while (!deadline.passed()) {
    dist::Descriptor socket = dist::connect_to(dist::Endpoint::parse(address), deadline, why);
    if (socket) return socket;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return {};
}

inline void say(const dist::Descriptor& socket, std::string_view text) {
  dist::send_all(socket.get(), std::as_bytes(std::span(text)), dist::Deadline(dist::Seconds(1)));
}

/// The first message of a handshake, as dist/rendezvous/handshake.h draws it.
inline std::string hello_of(unsigned version, dist::Purpose purpose, std::uint64_t job, int rank,
                            int size) {
  struct {
    unsigned version;
    dist::Purpose purpose;
    std::uint64_t job;
    int rank, size;
  } rest{version, purpose, job, rank, size};
  return "Lockstep" + std::string(reinterpret_cast<const char*>(&rest), sizeof rest);
}

/// A handshake to its end, with this token, as a rank of any protocol version would do it.
inline void shake_hands(const dist::Descriptor& socket, const std::string& hello,
                        const dist::Token& token) {
  say(socket, hello);
  std::array<std::byte, 48> challenge;
  const dist::Deadline deadline(dist::Seconds(2));
  if (dist::receive_all(socket.get(), challenge, deadline) != dist::Transfer::done) return;
  const dist::Token nonce = dist::random_token();
  dist::send_all(socket.get(), nonce, deadline);
  dist::send_all(
      socket.get(),
      dist::hmac(token, "initiator", {std::as_bytes(std::span(hello)), challenge, nonce}),
      deadline);
}

/// Sends strays of every kind to this address and returns the connections that they keep open.
/// `token`: that of the job where it has no secret, so that everybody knows it; `purpose`, `job`:
/// what its own ranks say there.
inline std::vector<dist::Descriptor> send_strays(const std::string& address, dist::Purpose purpose,
                                                 std::uint64_t job, const dist::Token& token) {
  std::vector<dist::Descriptor> open;
  const auto stray = [&]() -> dist::Descriptor& {
    return open.emplace_back(stray_connection(address));
  };
  for (int i = 0; i < 100; ++i) stray();                    // idle
  for (int i = 0; i < 100; ++i) stray_connection(address);  // a port scan
  for (int i = 0; i < 20; ++i) {                            // connect and reset
    const dist::Descriptor socket = stray_connection(address);
    const linger at_once{1, 0};
    ::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    if (i % 2 == 1) say(socket, "Lock");
  }
  std::mt19937 random(7);
  for (const std::size_t count : {1, 31, 32, 33, 4000}) {
    std::string bytes(count, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    say(stray(), bytes);
    say(stray(), "Lockstep" + bytes);
  }
  say(stray(), "GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n");
  say(stray(), std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11) +
                   std::string(500, 'r'));  // TLS
  say(stray(), "SSH-2.0-OpenSSH_9.2\r\n");
  const dist::Token wrong = dist::random_token();
  for (const unsigned version : {0u, 1u, 3u, dist::protocol_version, 8u, 0xffffffffu}) {
    const std::string hello = hello_of(version, purpose, job, 1, 2);
    say(stray(), hello.substr(0, 17));  // half of it
    say(stray(), hello);                // and then silence
    shake_hands(stray(), hello, wrong);
    shake_hands(stray(), hello_of(version, purpose, job + 1, 1, 2), token);  // another job's
    shake_hands(stray(), hello_of(version, dist::Purpose{9}, job, 1, 2), token);
  }
  return open;
}

}  // namespace lockstep::test
