#include "lockstep/dist/rendezvous/connect.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <thread>

namespace lockstep::dist {

namespace {

/// In a job that survives, a rank that listened for one world may be about to listen for the next.
/// ConnectOptions::watch tells which rank is lost.
constexpr Seconds between_worlds{5};

/// True if the other end has closed. It sends nothing before it is admitted, so bytes are an error.
bool has_closed(int socket) {
  std::byte byte{};
  return receive_some(socket, std::span(&byte, 1)) != 0;
}

/// Why this peer cannot be admitted; empty if it can. `sockets`: of the ranks that wait, by rank.
std::string objection(const AcceptedPeer& peer, const std::vector<Connection>& sockets,
                      const ConnectOptions& options) {
  const auto& [token, job, own, size] = options.credentials;
  const std::string_view who = options.members;
  if (peer.version != protocol_version)
    return fmt::format("a {0} speaks protocol version {1}, {0} {2} version {3}", who, peer.version,
                       own, protocol_version);
  if (peer.size != size)
    return fmt::format("{0} {1} expects a world of {2}, {0} {3} one of {4}", who, peer.rank,
                       peer.size, own, size);
  if (peer.rank < 0 || peer.rank >= size)
    return fmt::format("{} {} in a world of {}", who, peer.rank, size);
  if (peer.rank <= own || sockets[index(peer.rank)])
    return fmt::format("{} {} has joined twice", who, peer.rank);
  return "";
}

/// Tells all ranks that wait. Throws `reason` unless they are accepted.
void decide(std::vector<Connection>& sockets, Decision decision, const std::string& reason,
            const Blame& blame = {}) {
  for (Connection& socket : sockets)
    if (socket) send_admission(socket, decision, reason);
  if (decision == Decision::peer_gone) throw blaming(blame, PeerError(reason));
  if (decision == Decision::refused) throw blaming(blame, CommError(reason));
}

/// Takes the sockets of the ranks that have come. If one rank cannot be admitted, none is.
void take(std::vector<AcceptedPeer> peers, std::vector<Connection>& sockets,
          const ConnectOptions& options) {
  for (AcceptedPeer& peer : peers) {
    if (const std::string problem = objection(peer, sockets, options); !problem.empty()) {
      const std::string reason = fmt::format("[{}] {}", options.caller, problem);
      send_admission(peer.connection, Decision::refused, reason);
      decide(sockets, Decision::refused, reason);
    }
    sockets[index(peer.rank)] = std::move(peer.connection);
  }
}

/// That `peer` does not answer, or is not found: it is to blame.
CommError lost(int peer, const ConnectOptions& options, const std::string& message) {
  return blaming(options.of_job ? Blame{{peer}, Fault::missing} : Blame{}, CommError(message));
}

/// After send_hello: true once `peer` has admitted us, false if it closed the connection.
bool await_admission(Connection& connection, int peer, const std::string& me, const Endpoint& where,
                     const ConnectOptions& options, const Deadline& acceptor_waits) {
  // One second more than the acceptor waits: it knows who is missing, and will say it.
  const Deadline deadline(acceptor_waits.left() + Seconds(1));
  using enum Reply::Kind;
  Reply reply = authenticate(connection, options.credentials, options.purpose, deadline);
  check<CommError>(reply.kind != refused, "{}: what listens at {} {}", me, where.text(),
                   reply.refusal);
  if (reply.kind == accepted) reply = read_admission(connection, deadline);
  check<CommError>(reply.kind != refused, "{}", reply.refusal);
  check<PeerError>(reply.kind != peer_gone, "{}", reply.refusal);
  check<CommError>(reply.kind != not_authentic,
                   "{}: what answers at {} does not belong to this job", me, where.text());
  if (reply.kind == timed_out)
    throw lost(peer, options,
               fmt::format("{}: no answer from {} {} at {} within {:g} s", me, options.members,
                           peer, where.text(), options.timeout.count()));
  return reply.kind == accepted;
}

}  // namespace

std::vector<Connection> accept_higher_ranks(Descriptor listener, const Endpoint& where,
                                            const ConnectOptions& options,
                                            const Deadline& deadline) {
  const auto& [token, job, own, size] = options.credentials;
  std::vector<Connection> sockets(index(size));
  Acceptor acceptor(std::move(listener), options.credentials, options.purpose);
  // Removes a socket's file, at the latest when this function ends. That is before the listener
  // closes: afterwards the file could already be that of another process.
  std::unique_ptr<const char, int (*)(const char*)> file(
      where.is_unix() ? where.path.c_str() : nullptr, ::unlink);
  while (true) {
    std::vector<int> missing, gone;
    for (int rank = own + 1; rank < size; ++rank) {
      const Connection& socket = sockets[index(rank)];
      if (!socket) missing.push_back(rank);
      if (socket && has_closed(socket.get())) gone.push_back(rank);
    }
    const auto names = [&](const std::vector<int>& ranks, std::string_view state) {
      return describe_ranks(ranks, state, options.members);
    };
    const auto blame = [&](const std::vector<int>& ranks, Fault fault) {
      return options.of_job ? Blame{ranks, fault} : Blame{};
    };
    if (!gone.empty()) {
      if (options.watch) options.watch(gone);  // it may have said why before it left
      decide(sockets, Decision::peer_gone,
             fmt::format("[{}] {} before all {}s had joined", options.caller, names(gone, "gone"),
                         options.members),
             blame(gone, Fault::gone));
    }
    if (missing.empty()) break;
    if (options.watch) options.watch(missing);
    if (deadline.passed())
      decide(sockets, Decision::refused,
             fmt::format("[{}] after {:g} s at {} {} of a world of {}", options.caller,
                         options.timeout.count(), where.text(), names(missing, "missing"), size),
             blame(missing, Fault::missing));
    take(acceptor.wait(std::min(Seconds(0.02), deadline.left())), sockets, options);
  }
  file.reset();  // before any rank can go on, and perhaps be killed
  decide(sockets, Decision::accepted, "");
  return sockets;
}

Connection connect_to_rank(int peer, const Endpoint& where, const ConnectOptions& options,
                           const Deadline& deadline) {
  const Credentials& own = options.credentials;
  const std::string me = fmt::format("[{}] {} {}", options.caller, options.members, own.rank);
  const auto watch = [&] {
    if (options.watch) options.watch({peer});
  };
  std::string why = "timed out";
  bool reached = false;
  std::optional<Deadline> refused;
  for (int attempt = 0; !deadline.passed(); ++attempt) {
    watch();
    Connection socket{send_hello(where, own, options.purpose, deadline, why)};
    if (socket) refused.reset();
    if (!socket && reached && !refused)
      refused.emplace(options.watch ? between_worlds : Seconds(0));
    if (refused && refused->passed())
      fail<PeerError>("{}: {} {} no longer listens on {}: {}", me, options.members, peer,
                      where.text(), why);
    if (socket) {
      reached = true;
      if (await_admission(socket, peer, me, where, options, deadline)) return socket;
      why = fmt::format("closed without an answer: another job, or another {}?",
                        options.purpose == Purpose::nodes ? "secret" : "token");
    }
    std::this_thread::sleep_for(
        std::chrono::milliseconds(std::min(5 << std::min(attempt, 5), 100)));
  }
  throw lost(peer, options,
             fmt::format("{} did not find {} {} at {} within {:g} s: {}", me, options.members, peer,
                         where.text(), options.timeout.count(), why));
}

}  // namespace lockstep::dist
