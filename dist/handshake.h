#pragma once
/// The first bytes on every connection: a greeting of fixed size that starts with the job's secret
/// token, and an answer of fixed size that starts with it too. Nothing else that a stranger sends
/// is ever looked at, and nothing of variable length is read before both have been compared.
///
///   caller                                    doorkeeper
///     | -- Hello {token, magic, version, ...} --> |   wrong token, garbage, nothing for 5 s:
///     | <------- Answer {token, ..., refusal} --- |   closed without a word
///
/// The token is 32 random bytes that `lockstep-run` hands down to its ranks; other launchers hand
/// down none, and it is zero: on one machine the socket's mode 0600 and the peer's user id stand in
/// for it, on several the network has to be trusted.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/dist/socket.h"

namespace lockstep::dist {

using Token = std::array<std::byte, 32>;

/// The token in an inherited descriptor (it is read at offset 0, since all ranks share one
/// position). Throws UsageError if there are not 32 bytes.
Token read_token(int descriptor);

constexpr std::uint32_t protocol_version = 1;

/// What a connection is for: a greeting for another purpose is garbage.
enum class Purpose : std::uint32_t { store = 1, mesh = 2 };

/// Who speaks, and for which job.
struct Credentials {
  Token token{};
  std::uint64_t job = 0;  ///< hash of the job's name: two jobs at one address never merge
  int rank = 0;
  int size = 1;
};

/// Somebody who knows the job. Only `version` may be trusted if it is not our own.
struct Guest {
  Descriptor socket;
  std::uint32_t version = 0;
  int rank = 0;
  int size = 0;
};

/// Accepts connections and reads their greetings, all at once, so that a slow or silent one keeps
/// nobody waiting. At most 64 wait for their greeting's end; one more turns the oldest out.
class Doorkeeper {
 public:
  Doorkeeper(Descriptor listener, const Credentials& own, Purpose purpose);

  /// Waits at most `at_most` for something to happen; returns whoever has greeted properly since.
  /// Throws CommError if the system has no descriptor or memory for another connection.
  std::vector<Guest> wait(Seconds at_most);
  ~Doorkeeper();

 private:
  struct Visitor;
  bool hear(Visitor& visitor, std::vector<Guest>& guests);

  Descriptor listener_;
  Credentials own_;
  Purpose purpose_;
  std::vector<Visitor> visitors_;  // the oldest first
};

/// What a guest is told. `peer_gone` is a refusal too, because another rank is gone.
enum class Admission : std::uint32_t { refused = 0, accepted = 1, peer_gone = 2 };

/// Answers a guest, with the `reason` for a refusal. Best effort.
void answer(int socket, const Credentials& own, Admission admission,
            std::string_view reason = {}) noexcept;

/// Connects and greets. Empty, and the reason in `why`, if that was not possible (yet).
Descriptor greet(const Endpoint& where, const Credentials& own, Purpose purpose,
                 const Deadline& deadline, std::string& why);

struct Reply {
  enum class Kind { accepted, refused, peer_gone, closed, timed_out, stranger } kind;
  std::string refusal;
};
/// The answer to a greeting: an Admission, or `closed` without one, or `stranger`: the other end
/// does not belong to the job.
Reply read_answer(int socket, const Credentials& own, const Deadline& deadline);

}  // namespace lockstep::dist
