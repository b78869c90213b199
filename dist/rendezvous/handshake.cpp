#include "lockstep/dist/rendezvous/handshake.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <optional>
#include <type_traits>

#include "lockstep/core/system/file_kind.h"

namespace lockstep::dist {

static_assert(std::endian::native == std::endian::little, "messages travel as they lie in memory");

namespace {

constexpr std::size_t least_file = 32, most_file = 4096;

constexpr Seconds handshake_time{5};
constexpr Seconds least_time{0.05};  // before a newer connection may end a handshake
constexpr std::size_t most_handshakes = 64;
constexpr std::array<char, 8> magic{'L', 'o', 'c', 'k', 's', 't', 'e', 'p'};

// Hello, Challenge, Proof and Welcome are the same in every version of the protocol.
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

struct Admission {
  Decision decision;
  std::array<char, 508> reason;
  Tag tag;
  Tag right_tag(KeyStream& keys) const {
    return seal(keys.next(), std::as_bytes(std::span(this, 1)).first(offsetof(Admission, tag)));
  }
};
static_assert(sizeof(Hello) == 32 && sizeof(Challenge) == 48 && sizeof(Proof) == 64 &&
              sizeof(Admission) == 528);

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return std::as_bytes(std::span(&value, 1));
}

Hello hello_of(const Credentials& own, Purpose purpose) {
  return {magic, protocol_version, purpose, own.job, own.rank, own.size};
}

/// What cannot be made for these messages without the token: both nonces are fresh.
///
///   "initiator", "acceptor"                             the proof of this side
///   "frames of the initiator", "frames of the acceptor" the key of what this side sends
Token code_of(const Token& token, std::string_view what, const Hello& hello,
              const Challenge& challenge, const Token& nonce) {
  return hmac(token, what, {bytes_of(hello), bytes_of(challenge), nonce});
}
constexpr std::string_view initiators_frames = "frames of the initiator",
                           acceptors_frames = "frames of the acceptor";

template <class T>
Transfer receive_into(T& value, int socket, const Deadline& deadline) {
  return receive_all(socket, std::as_writable_bytes(std::span(&value, 1)), deadline);
}

Reply::Kind kind_of(Transfer failure) {
  return failure == Transfer::closed ? Reply::Kind::closed : Reply::Kind::timed_out;
}

}  // namespace

Token random_token() {
  Token token;
  // Up to 256 bytes come whole (getrandom(2)).
  const ssize_t got = ::getrandom(token.data(), token.size(), 0);
  check<Error>(got == std::ssize(token), "[token] no random bytes: {}", system_message(errno));
  return token;
}

Token read_token(int descriptor) {
  Token token{};
  const ssize_t got = TEMP_FAILURE_RETRY(::pread(descriptor, token.data(), token.size(), 0));
  check<UsageError>(got == std::ssize(token),
                    "[rendezvous] LOCKSTEP_TOKEN_FD={}: expected {} bytes, got {}", descriptor,
                    token.size(), got < 0 ? system_message(errno) : std::to_string(got));
  return token;
}

Token token_of_file(const std::string& path) {
  const std::string why = why_unreadable(path);
  check<UsageError>(why.empty(), "[token] cannot read the secret file '{}': {}", path, why);
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  check<UsageError>(static_cast<bool>(file), "[token] cannot read the secret file '{}': {}", path,
                    system_message(errno));
  struct stat status {};
  const bool known = ::fstat(file.get(), &status) == 0;
  check<UsageError>(known && (status.st_mode & 077) == 0,
                    "[token] the secret file '{}' has mode {:o}: others can use it (chmod 600)",
                    path, status.st_mode & 0777);
  std::vector<std::byte> bytes(most_file + 1);
  const ssize_t got = TEMP_FAILURE_RETRY(::read(file.get(), bytes.data(), bytes.size()));
  check<UsageError>(got >= 0, "[token] cannot read the secret file '{}': {}", path,
                    system_message(errno));
  const auto size = static_cast<std::size_t>(got);
  check<UsageError>(size >= least_file && size <= most_file,
                    "[token] the secret file '{}' must have {} to {} bytes, got {}{}", path,
                    least_file, most_file, size == most_file + 1 ? "more than " : "",
                    std::min(size, most_file));
  return hmac(std::span(bytes).first(size), "lockstep secret file", {});
}

Token hmac(std::span<const std::byte> key, std::string_view purpose,
           std::initializer_list<std::span<const std::byte>> parts) {
  std::string message(purpose);
  for (const std::span<const std::byte> part : parts)
    message.append(reinterpret_cast<const char*>(part.data()), part.size());
  Token code;
  const auto* bytes = reinterpret_cast<const unsigned char*>(message.data());
  check<Error>(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), bytes, message.size(),
                    reinterpret_cast<unsigned char*>(code.data()), nullptr) != nullptr,
               "[token] HMAC-SHA256 of {} bytes failed", message.size());
  return code;
}

struct Acceptor::Handshake {
  /// Takes what has arrived of a message. True once it is whole.
  template <class T>
  bool receive(T& message) {
    const auto bytes = std::as_writable_bytes(std::span(&message, 1));
    last = receive_some(socket.get(), bytes.subspan(received));
    received += static_cast<std::size_t>(std::max<std::ptrdiff_t>(last, 0));
    if (received < sizeof message) return false;
    received = 0;
    return true;
  }
  bool young() const { return handshake_time - deadline.left() < least_time; }
  bool failed() const { return last == peer_closed || (last == 0 && deadline.passed()); }

  Descriptor socket;
  Deadline deadline{handshake_time};
  Hello hello{};
  std::optional<Challenge> challenge{};  // once it has been sent
  Proof proof{};
  std::size_t received = 0;  // bytes of the message that is being read
  std::ptrdiff_t last = 0;   // what receive_some returned
};

Acceptor::Acceptor(Descriptor listener, const Credentials& own, Purpose purpose)
    : listener_(std::move(listener)), own_(own), purpose_(purpose) {}

Acceptor::~Acceptor() = default;

std::vector<AcceptedPeer> Acceptor::wait(Seconds at_most) {
  const auto full = [&] { return running_.size() == most_handshakes && running_[0].young(); };
  if (full())
    at_most = std::min(at_most, least_time);  // new connections wait in the system's queue
  std::vector<pollfd> entries{{full() ? -1 : listener_.get(), POLLIN, 0}};
  for (const Handshake& handshake : running_) {
    entries.push_back({handshake.socket.get(), POLLIN, 0});
    at_most = std::min(at_most, handshake.deadline.left());
  }
  ::poll(entries.data(), entries.size(), Deadline(at_most).milliseconds());

  // Fewer at once than there is room for, so that each handshake is read from before it is ended.
  for (std::size_t i = 0; i < most_handshakes / 2 && !full(); ++i) {
    Descriptor peer = accept_from(listener_.get());
    if (!peer) break;
    if (running_.size() == most_handshakes) running_.erase(running_.begin());
    running_.push_back({.socket = std::move(peer)});
  }
  std::vector<AcceptedPeer> peers;
  std::erase_if(running_, [&](Handshake& handshake) { return !advance(handshake, peers); });
  return peers;
}

/// False when the handshake is over: it has failed, or its peer is in `peers`.
bool Acceptor::advance(Handshake& handshake, std::vector<AcceptedPeer>& peers) {
  const Hello& hello = handshake.hello;
  if (!handshake.challenge) {
    if (!handshake.receive(handshake.hello)) return !handshake.failed();
    if (hello.magic != magic) return false;
    handshake.challenge = Challenge{magic, protocol_version, random_token()};
    send_some(handshake.socket.get(), bytes_of(*handshake.challenge));  // fits an empty buffer
  }
  if (!handshake.receive(handshake.proof)) return !handshake.failed();
  const auto code = [&](std::string_view side) {
    return code_of(own_.token, side, hello, *handshake.challenge, handshake.proof.nonce);
  };
  if (!same(handshake.proof.code, code("initiator"))) return false;
  if (hello.purpose != purpose_ || hello.job != own_.job) return false;  // whatever its version
  send_some(handshake.socket.get(), bytes_of(code("acceptor")));
  Connection connection{std::move(handshake.socket), KeyStream(code(acceptors_frames)),
                        KeyStream(code(initiators_frames))};
  peers.push_back({std::move(connection), hello.version, hello.rank, hello.size});
  return false;
}

void send_admission(Connection& to, Decision decision, std::string_view reason) noexcept {
  Admission message{decision, {}, {}};
  std::copy_n(reason.begin(), std::min(reason.size(), message.reason.size()),
              message.reason.begin());
  message.tag = message.right_tag(to.sending);
  send_some(to.get(), bytes_of(message));  // fits the buffer of a new connection
}

Descriptor send_hello(const Endpoint& where, const Credentials& own, Purpose purpose,
                      const Deadline& deadline, std::string& why) {
  Descriptor socket = connect_to(where, deadline, why);
  if (!socket) return socket;
  if (send_all(socket.get(), bytes_of(hello_of(own, purpose)), deadline) == Transfer::done)
    return socket;
  why = "the connection was closed";
  return {};
}

Reply authenticate(Connection& connection, const Credentials& own, Purpose purpose,
                   const Deadline& deadline) {
  const int socket = connection.get();
  Challenge challenge{};
  Transfer transfer = receive_into(challenge, socket, deadline);
  if (transfer != Transfer::done) return {kind_of(transfer)};
  if (challenge.magic != magic) return {Reply::Kind::not_authentic};
  const Token nonce = random_token();
  const auto code = [&](std::string_view side) {
    return code_of(own.token, side, hello_of(own, purpose), challenge, nonce);
  };
  const Proof proof{nonce, code("initiator")};
  transfer = send_all(socket, bytes_of(proof), deadline);
  if (transfer != Transfer::done) return {kind_of(transfer)};
  Token welcome{};
  transfer = receive_into(welcome, socket, deadline);
  if (transfer != Transfer::done) return {kind_of(transfer)};
  if (!same(welcome, code("acceptor"))) return {Reply::Kind::not_authentic};
  connection.sending = KeyStream(code(initiators_frames));
  connection.receiving = KeyStream(code(acceptors_frames));
  if (challenge.version == protocol_version) return {Reply::Kind::accepted};
  return {Reply::Kind::refused, fmt::format("speaks protocol version {}, not version {}",
                                            challenge.version, protocol_version)};
}

Reply read_admission(Connection& connection, const Deadline& deadline) {
  Admission message{};
  const Transfer transfer = receive_into(message, connection.get(), deadline);
  if (transfer != Transfer::done) return {kind_of(transfer)};
  if (!same(message.tag, message.right_tag(connection.receiving)))
    return {Reply::Kind::not_authentic};
  if (message.decision == Decision::accepted) return {Reply::Kind::accepted};
  const auto end = std::find(message.reason.begin(), message.reason.end(), '\0');
  const bool gone = message.decision == Decision::peer_gone;
  return {gone ? Reply::Kind::peer_gone : Reply::Kind::refused,
          std::string(message.reason.begin(), end)};
}

}  // namespace lockstep::dist
