#pragma once
/// The first bytes on every connection: each side proves that it knows the job's secret token
/// without sending it. All messages have a fixed size, and nothing of variable length is read
/// before both proofs have been checked.
///
///   caller                                                 acceptor
///     | -- Hello {magic, version, purpose, job, rank, size} --> |   garbage, a wrong proof,
///     | <-------------- Challenge {magic, version, nonce} ----- |   nothing for 5 s:
///     | ------- Proof {nonce, HMAC of all that was said} -----> |   closed without a word
///     | <------------- Welcome {HMAC of all that was said} ---- |
///     | <----------------------- Answer {admission, refusal} -- |   at once or much later
///
/// The token is 32 random bytes that `lockstep-run` hands down to its ranks, or made from the
/// secret file of its launchers; other launchers hand down none, and it is zero: on one machine the
/// socket's mode 0600 and the peer's user id stand in for it, on several the network has to be
/// trusted. What is sent after the handshake can be read by whoever can read the network's traffic.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/dist/rendezvous/socket.h"
#include "lockstep/dist/rendezvous/token.h"

namespace lockstep::dist {

constexpr std::uint32_t protocol_version = 2;

/// What a connection is for: a greeting for another purpose is garbage.
enum class Purpose : std::uint32_t { rendezvous = 1, mesh = 2, nodes = 3 };

/// Who speaks, and for which job.
struct Credentials {
  Token token{};
  std::uint64_t job = 0;  ///< hash of the job's name: two jobs at one address never merge
  int rank = 0;
  int size = 1;
};

/// Somebody who knows the job. Only `version` may be trusted if it is not our own.
struct AcceptedPeer {
  Descriptor socket;
  std::uint32_t version = 0;
  int rank = 0;
  int size = 0;
};

/// Accepts connections and checks their proofs, all at once, so that a slow or silent one keeps
/// nobody waiting. At most 64 are being heard; one more turns the oldest out, once that has had
/// time for a round trip or two.
class Acceptor {
 public:
  Acceptor(Descriptor listener, const Credentials& own, Purpose purpose);

  /// Waits at most `at_most` for something to happen; returns whoever has proved to belong here.
  /// Throws CommError if the system has no descriptor or memory for another connection.
  std::vector<AcceptedPeer> wait(Seconds at_most);
  ~Acceptor();

 private:
  struct PendingConnection;
  bool hear(PendingConnection& pending, std::vector<AcceptedPeer>& peers);

  Descriptor listener_;
  Credentials own_;
  Purpose purpose_;
  std::vector<PendingConnection> pending_;  // the oldest first
};

/// What a peer is told. `peer_gone` is a refusal too, because another rank is gone.
enum class Admission : std::uint32_t { refused = 0, accepted = 1, peer_gone = 2 };

/// Answers a peer, with the `reason` for a refusal. Best effort.
void answer(int socket, Admission admission, std::string_view reason = {}) noexcept;

/// Connects and says Hello; does not wait for a word. Empty, and the reason in `why`, if that was
/// not possible (yet).
Descriptor greet(const Endpoint& where, const Credentials& own, Purpose purpose,
                 const Deadline& deadline, std::string& why);

struct Reply {
  enum class Kind { accepted, refused, peer_gone, closed, timed_out, stranger } kind;
  std::string refusal{};
};
/// What follows a greeting: both proofs. `accepted`, `closed` (the other end does not know us),
/// `timed_out`, or `stranger`: the other end does not belong to the job.
Reply prove(int socket, const Credentials& own, Purpose purpose, const Deadline& deadline);
/// The answer that follows the proofs: an Admission, `closed` without one, or `timed_out`.
Reply read_answer(int socket, const Deadline& deadline);

}  // namespace lockstep::dist
