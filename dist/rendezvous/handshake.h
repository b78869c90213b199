#pragma once
/// Tokens and the handshake: the first bytes on every connection. Each side proves that it knows
/// the job's secret token without sending it. All messages have a fixed size, and nothing of
/// variable length is read before both proofs have been checked.
///
///   initiator                                              acceptor
///     | -- Hello {magic, version, purpose, job, rank, size} --> |   the acceptor closes without
///     | <-------------- Challenge {magic, version, nonce} ----- |   an answer after garbage, a
///     | ------- Proof {nonce, HMAC of all messages} ----------> |   wrong proof, or 5 s of silence
///     | <------------- Welcome {HMAC of all messages} --------- |
///     | <------------------ Admission {decision, reason} ------ |   at once or much later
///
/// The token is 32 random bytes that `lockstep-run` hands to its ranks, or it is made from the
/// secret file of several launchers. Other launchers hand over none; then it is zero. On one
/// machine the socket's mode 0600 and the peer's user id protect the job instead. On several
/// machines without a token, the network has to be trusted.
///
/// Both sides make two keys from the token and all messages, one for each direction. From Admission
/// on, all that is sent over the connection is sealed with them (seal.h). Without a token, any
/// program that reads the handshake can make these keys. Nothing is encrypted: a program that can
/// read the network's traffic can read what is sent.
///
/// Thread-safety: functions may be called from any thread, an Acceptor from one thread at a time.

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/dist/rendezvous/endpoint.h"
#include "lockstep/dist/rendezvous/seal.h"

namespace lockstep::dist {

/// 32 fresh random bytes: a secret, or a number used once (nonce).
Token random_token();

/// The token in an inherited descriptor. It is read at offset 0, because all ranks share one file
/// position. Throws UsageError if there are not 32 bytes.
Token read_token(int descriptor);

/// The token that a file's bytes stand for: the same on every machine that has them. Throws
/// UsageError, with the file's name, if it cannot be read, is open to other users (mode & 077) or
/// has less than 32 or more than 4096 bytes.
Token token_of_file(const std::string& path);

/// HMAC-SHA256 (RFC 2104) of the purpose and then the parts. Without the key it can neither be
/// computed nor be told from random bytes.
Token hmac(std::span<const std::byte> key, std::string_view purpose,
           std::initializer_list<std::span<const std::byte>> parts);

constexpr std::uint32_t protocol_version = 7;

/// What a connection is for. A Hello for another purpose is garbage.
enum class Purpose : std::uint32_t { rendezvous = 1, mesh = 2, nodes = 3 };

/// Who speaks, and for which job.
struct Credentials {
  Token token{};
  std::uint64_t job = 0;  ///< hash of the job's name: two jobs at one address never merge
  int rank = 0;
  int size = 1;
};

/// A peer that has proved to know the token, and belongs to this job. If `version` is not our own,
/// it sends and understands no message after the handshake but an Admission's reason.
struct AcceptedPeer {
  Connection connection;
  std::uint32_t version = 0;
  int rank = 0;
  int size = 0;
};

/// Accepts connections and runs all their handshakes side by side, so that a slow or silent one
/// does not delay the others. At most 64 handshakes run at a time. One more ends the oldest, but
/// not before the oldest has had time for a round trip or two.
class Acceptor {
 public:
  Acceptor(Descriptor listener, const Credentials& own, Purpose purpose);
  ~Acceptor();

  /// Waits at most `at_most` for something to happen. Returns the peers whose handshake is
  /// complete. Throws CommError if the system has no descriptor or memory for another connection.
  std::vector<AcceptedPeer> wait(Seconds at_most);

 private:
  struct Handshake;
  bool advance(Handshake& handshake, std::vector<AcceptedPeer>& peers);

  Descriptor listener_;
  Credentials own_;
  Purpose purpose_;
  std::vector<Handshake> running_;  // the oldest first
};

/// The acceptor's decision. `peer_gone` is a refusal because another rank is gone.
enum class Decision : std::uint32_t { refused = 0, accepted = 1, peer_gone = 2 };

/// The acceptor's last message, with the `reason` for a refusal. Best effort.
void send_admission(Connection& to, Decision decision, std::string_view reason = {}) noexcept;

/// The initiator: connects and sends its Hello. Returns an empty Descriptor, and the reason in
/// `why`, if that is not possible (yet).
Descriptor send_hello(const Endpoint& where, const Credentials& own, Purpose purpose,
                      const Deadline& deadline, std::string& why);

/// What the initiator learns. `closed`: the acceptor ended the connection, for example because it
/// belongs to another job. `not_authentic`: the acceptor does not know the token. `refused`, in
/// authenticate: it speaks another version of the protocol.
struct Reply {
  enum class Kind { accepted, refused, peer_gone, closed, timed_out, not_authentic } kind;
  std::string refusal{};
};
/// The initiator, after send_hello: exchanges the proofs. Never returns `peer_gone`. Sets the keys
/// of the connection.
Reply authenticate(Connection& connection, const Credentials& own, Purpose purpose,
                   const Deadline& deadline);
/// The initiator, after authenticate: the decision, or `closed` or `timed_out` without one.
Reply read_admission(Connection& connection, const Deadline& deadline);

}  // namespace lockstep::dist
