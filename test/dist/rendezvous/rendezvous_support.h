#pragma once
/// What the tests of the rendezvous share: options of a job's ranks, ranks on threads, an exchange
/// that checks itself, and strangers.

#include <algorithm>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/core/hash.h"
#include "lockstep/dist/rendezvous/rendezvous.h"
#include "support/forked_ranks.h"

namespace lockstep::dist::testing {

using test::contains;
using test::expect;
using test::Outcome;
using test::TemporaryFolder;

inline Token token_of(unsigned char byte) {
  Token token;
  token.fill(std::byte{byte});
  return token;
}

inline RendezvousOptions options_for(const std::string& address, int rank, int size,
                                     double timeout = 20) {
  RendezvousOptions options;
  options.address = Endpoint::parse(address);
  options.one_machine = true;
  options.credentials = {token_of(7), fnv1a("job"), rank, size};
  options.timeout = Seconds(timeout);
  return options;
}

/// Runs body(rank) in threads and returns what each threw ("" if nothing).
inline std::vector<std::string> run_ranks(int size, const std::function<void(int)>& body) {
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r)
    threads.emplace_back([&, r] {
      try {
        body(r);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(r)] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

/// A stranger's connection, tried until somebody listens.
inline Descriptor stranger(const std::string& address) {
  std::string why;
  const Deadline deadline(Seconds(10));
  while (!deadline.passed()) {
    Descriptor socket = connect_to(Endpoint::parse(address), deadline, why);
    if (socket) return socket;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return {};
}

inline void write_text(const Descriptor& socket, std::string_view text) {
  send_all(socket.get(), std::as_bytes(std::span(text)), Deadline(Seconds(1)));
}

/// True if the other end closes within the limit, without a byte.
inline bool gets_closed(const Descriptor& socket, double limit) {
  std::byte byte{};
  return receive_all(socket.get(), std::span(&byte, 1), Deadline(Seconds(limit))) ==
         Transfer::closed;
}

/// Exchanges unequal, sometimes empty, sometimes long strings, twice.
inline void exchange(Rendezvous& rendezvous) {
  for (int round = 0; round < 2; ++round) {
    const auto given = [&](int r) {
      return std::string(static_cast<std::size_t>(r == 1 ? 0 : 70'000 * round + r),
                         static_cast<char>('a' + r));
    };
    const auto all =
        rendezvous.all_gather("round " + std::to_string(round), given(rendezvous.rank()));
    expect(all.size() == static_cast<std::size_t>(rendezvous.size()), "{} parts", all.size());
    for (int r = 0; r < rendezvous.size(); ++r)
      expect(all[static_cast<std::size_t>(r)] == given(r), "rank {}'s part is wrong", r);
  }
}

}  // namespace lockstep::dist::testing
