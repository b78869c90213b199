#include "lockstep/dist/rendezvous/handshake.h"

#include <poll.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <type_traits>

namespace lockstep::dist {

static_assert(std::endian::native == std::endian::little, "greetings travel as they lie in memory");

namespace {

constexpr Seconds greeting_time{5};
constexpr Seconds fair_time{0.05};  // of which nobody is deprived
constexpr std::size_t most_pending = 64;
constexpr std::array<char, 8> magic{'L', 'o', 'c', 'k', 's', 't', 'e', 'p'};

// These four are the same in every version of the protocol.
struct Hello {
  std::array<char, 8> magic;
  std::uint32_t version;
  Purpose purpose;
  std::uint64_t job;
  std::int32_t rank;
  std::int32_t size;
};
struct Challenge {
  std::array<char, 8> magic;
  std::uint64_t version;
  Token nonce;
};
struct Proof {
  Token nonce;
  Token code;
};
using Welcome = Token;

struct Answer {
  Admission admission;
  std::array<char, 508> refusal;
};
static_assert(sizeof(Hello) == 32 && sizeof(Challenge) == 48 && sizeof(Proof) == 64 &&
              sizeof(Answer) == 512);
static_assert(std::is_trivially_copyable_v<Hello> && std::is_trivially_copyable_v<Challenge> &&
              std::is_trivially_copyable_v<Proof> && std::is_trivially_copyable_v<Answer>);

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

Hello hello_of(const Credentials& own, Purpose purpose) {
  return {magic, protocol_version, purpose, own.job, own.rank, own.size};
}

/// What `side` (caller or acceptor) proves itself by: it knows the token, and both nonces are of today.
Token code_of(const Token& token, std::string_view side, const Hello& hello,
              const Challenge& challenge, const Token& nonce) {
  return hmac(token, side, {bytes_of(hello), bytes_of(challenge), nonce});
}

template <class T>
Transfer receive_into(T& value, int socket, const Deadline& deadline) {
  return receive_all(socket, std::as_writable_bytes(std::span(&value, 1)), deadline);
}

Reply::Kind kind_of(Transfer failure) {
  return failure == Transfer::closed ? Reply::Kind::closed : Reply::Kind::timed_out;
}

}  // namespace

struct Acceptor::PendingConnection {
  explicit PendingConnection(Descriptor connection) : socket(std::move(connection)) {}

  /// Takes what has come of a message; true once it is whole.
  template <class T>
  bool complete(T& message) {
    heard += static_cast<std::size_t>(std::max<std::ptrdiff_t>(
        got = receive_some(socket.get(),
                           std::as_writable_bytes(std::span(&message, 1)).subspan(heard)),
        0));
    if (heard < sizeof message) return false;
    heard = 0;
    return true;
  }
  bool young() const { return greeting_time - deadline.left() < fair_time; }
  bool lost() const { return got == peer_closed || (got == 0 && deadline.passed()); }

  Descriptor socket;
  Deadline deadline{greeting_time};
  Hello hello{};
  std::optional<Challenge> challenge{};  // once it has been sent
  Proof proof{};
  std::size_t heard = 0;  // bytes of the message that is being read
  std::ptrdiff_t got = 0;
};

Acceptor::Acceptor(Descriptor listener, const Credentials& own, Purpose purpose)
    : listener_(std::move(listener)), own_(own), purpose_(purpose) {}

Acceptor::~Acceptor() = default;

std::vector<AcceptedPeer> Acceptor::wait(Seconds at_most) {
  const auto full = [&] { return pending_.size() == most_pending && pending_[0].young(); };
  if (full()) at_most = std::min(at_most, fair_time);  // the others wait outside
  std::vector<pollfd> entries{{full() ? -1 : listener_.get(), POLLIN, 0}};
  for (const PendingConnection& pending : pending_) {
    entries.push_back({pending.socket.get(), POLLIN, 0});
    at_most = std::min(at_most, pending.deadline.left());
  }
  const Deadline until(at_most);
  ::poll(entries.data(), entries.size(), until.milliseconds());

  // Fewer at once than there is room for: everybody is heard at least once before being turned out.
  for (std::size_t i = 0; i < most_pending / 2 && !full(); ++i) {
    Descriptor peer = accept_from(listener_.get());
    if (!peer) break;
    if (pending_.size() == most_pending) pending_.erase(pending_.begin());
    pending_.emplace_back(std::move(peer));
  }
  std::vector<AcceptedPeer> peers;
  std::erase_if(pending_, [&](PendingConnection& pending) { return !hear(pending, peers); });
  return peers;
}

/// False when the pending has left the list: as a peer, or turned out.
bool Acceptor::hear(PendingConnection& pending, std::vector<AcceptedPeer>& peers) {
  const Hello& hello = pending.hello;
  if (!pending.challenge) {
    if (!pending.complete(pending.hello)) return !pending.lost();
    if (hello.magic != magic) return false;
    pending.challenge = Challenge{magic, protocol_version, random_token()};
    send_some(pending.socket.get(), bytes_of(*pending.challenge));  // fits into an empty buffer
  }
  if (!pending.complete(pending.proof)) return !pending.lost();
  const auto code = [&](std::string_view side) {
    return code_of(own_.token, side, hello, *pending.challenge, pending.proof.nonce);
  };
  if (!same(pending.proof.code, code("caller"))) return false;
  const bool same_version = hello.version == protocol_version;
  if (same_version && (hello.purpose != purpose_ || hello.job != own_.job)) return false;
  send_some(pending.socket.get(), bytes_of(code("acceptor")));
  peers.push_back({std::move(pending.socket), hello.version, hello.rank, hello.size});
  return false;
}

void answer(int socket, Admission admission, std::string_view reason) noexcept {
  Answer reply{admission, {}};
  std::copy_n(reason.begin(), std::min(reason.size(), reply.refusal.size()), reply.refusal.begin());
  send_some(socket, bytes_of(reply));  // fits into the buffer of a new connection
}

Descriptor greet(const Endpoint& where, const Credentials& own, Purpose purpose,
                 const Deadline& deadline, std::string& why) {
  Descriptor socket = connect_to(where, deadline, why);
  if (!socket) return socket;
  if (send_all(socket.get(), bytes_of(hello_of(own, purpose)), deadline) == Transfer::done)
    return socket;
  why = "the connection was closed";
  return {};
}

Reply prove(int socket, const Credentials& own, Purpose purpose, const Deadline& deadline) {
  Challenge challenge{};
  Transfer transfer = receive_into(challenge, socket, deadline);
  if (transfer != Transfer::done) return {kind_of(transfer)};
  if (challenge.magic != magic) return {Reply::Kind::stranger};
  const Token nonce = random_token();
  const auto code = [&](std::string_view side) {
    return code_of(own.token, side, hello_of(own, purpose), challenge, nonce);
  };
  const Proof proof{nonce, code("caller")};
  transfer = send_all(socket, bytes_of(proof), deadline);
  if (transfer != Transfer::done) return {kind_of(transfer)};
  Welcome welcome{};
  transfer = receive_into(welcome, socket, deadline);
  if (transfer != Transfer::done) return {kind_of(transfer)};
  return {same(welcome, code("acceptor")) ? Reply::Kind::accepted : Reply::Kind::stranger};
}

Reply read_answer(int socket, const Deadline& deadline) {
  Answer reply{};
  const Transfer transfer = receive_into(reply, socket, deadline);
  if (transfer != Transfer::done) return {kind_of(transfer)};
  if (reply.admission == Admission::accepted) return {Reply::Kind::accepted};
  const auto end = std::find(reply.refusal.begin(), reply.refusal.end(), '\0');
  const bool gone = reply.admission == Admission::peer_gone;
  return {gone ? Reply::Kind::peer_gone : Reply::Kind::refused,
          std::string(reply.refusal.begin(), end)};
}

}  // namespace lockstep::dist
