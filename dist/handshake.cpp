#include "lockstep/dist/handshake.h"

#include <openssl/crypto.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <type_traits>

namespace lockstep::dist {

static_assert(std::endian::native == std::endian::little, "greetings travel as they lie in memory");

namespace {

constexpr Seconds greeting_time{5};
constexpr std::size_t most_visitors = 64;
constexpr std::array<char, 8> magic{'L', 'o', 'c', 'k', 's', 't', 'e', 'p'};

// Token, magic and version keep their places in every version of the protocol.
struct Hello {
  Token token;
  std::array<char, 8> magic;
  std::uint32_t version;
  Purpose purpose;
  std::uint64_t job;
  std::int32_t rank;
  std::int32_t size;
};
struct Answer {
  Token token;
  std::array<char, 8> magic;
  std::uint32_t version;
  Admission admission;
  std::array<char, 464> refusal;
};
static_assert(sizeof(Hello) == 64 && sizeof(Answer) == 512);
static_assert(std::is_trivially_copyable_v<Hello> && std::is_trivially_copyable_v<Answer>);

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

bool same(const Token& a, const Token& b) {  // takes the same time wherever they differ
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace

struct Doorkeeper::Visitor {
  explicit Visitor(Descriptor connection) : socket(std::move(connection)) {}

  Descriptor socket;
  Deadline deadline{greeting_time};
  std::array<std::byte, sizeof(Hello)> greeting{};
  std::size_t heard = 0;
};

Token read_token(int descriptor) {
  Token token{};
  ssize_t got = 0;
  do got = ::pread(descriptor, token.data(), token.size(), 0);
  while (got < 0 && errno == EINTR);
  check<UsageError>(got == static_cast<ssize_t>(token.size()),
                    "[store] LOCKSTEP_TOKEN_FD={}: expected {} bytes, got {}", descriptor,
                    token.size(), got < 0 ? system_message(errno) : std::to_string(got));
  return token;
}

Doorkeeper::Doorkeeper(Descriptor listener, const Credentials& own, Purpose purpose)
    : listener_(std::move(listener)), own_(own), purpose_(purpose) {}

Doorkeeper::~Doorkeeper() = default;

std::vector<Guest> Doorkeeper::wait(Seconds at_most) {
  std::vector<pollfd> entries{{listener_.get(), POLLIN, 0}};
  for (const Visitor& visitor : visitors_) {
    entries.push_back({visitor.socket.get(), POLLIN, 0});
    at_most = std::min(at_most, visitor.deadline.left());
  }
  const Deadline until(at_most);
  ::poll(entries.data(), entries.size(), until.milliseconds());

  // Fewer at once than there is room for: everybody is heard at least once before being turned out.
  for (std::size_t i = 0; i < most_visitors / 2; ++i) {
    Descriptor guest = accept_from(listener_.get());
    if (!guest) break;
    if (visitors_.size() == most_visitors) visitors_.erase(visitors_.begin());
    visitors_.emplace_back(std::move(guest));
  }
  std::vector<Guest> guests;
  std::erase_if(visitors_, [&](Visitor& visitor) { return !hear(visitor, guests); });
  return guests;
}

/// False when the visitor has left the list: as a guest, or turned out.
bool Doorkeeper::hear(Visitor& visitor, std::vector<Guest>& guests) {
  const std::ptrdiff_t got =
      receive_some(visitor.socket.get(), std::span(visitor.greeting).subspan(visitor.heard));
  if (got == peer_closed || (got == 0 && visitor.deadline.passed())) return false;
  visitor.heard += static_cast<std::size_t>(got);
  if (visitor.heard < visitor.greeting.size()) return true;

  const auto hello = std::bit_cast<Hello>(visitor.greeting);
  if (!same(hello.token, own_.token)) return false;
  if (hello.magic != magic) return false;
  const bool same_version = hello.version == protocol_version;
  if (same_version && (hello.purpose != purpose_ || hello.job != own_.job)) return false;
  guests.push_back({std::move(visitor.socket), hello.version, hello.rank, hello.size});
  return false;
}

void answer(int socket, const Credentials& own, Admission admission,
            std::string_view reason) noexcept {
  Answer reply{own.token, magic, protocol_version, admission, {}};
  std::copy_n(reason.begin(), std::min(reason.size(), reply.refusal.size()), reply.refusal.begin());
  send_some(socket, bytes_of(reply));  // fits into the empty buffer of a new connection
}

Descriptor greet(const Endpoint& where, const Credentials& own, Purpose purpose,
                 const Deadline& deadline, std::string& why) {
  Descriptor socket = connect_to(where, deadline, why);
  if (!socket) return socket;
  const Hello hello{own.token, magic, protocol_version, purpose, own.job, own.rank, own.size};
  if (send_all(socket.get(), bytes_of(hello), deadline) == Transfer::done) return socket;
  why = "the connection was closed";
  return {};
}

Reply read_answer(int socket, const Credentials& own, const Deadline& deadline) {
  Answer reply{};
  const auto bytes = std::as_writable_bytes(std::span(&reply, 1));
  switch (receive_all(socket, bytes, deadline)) {
    case Transfer::closed:
      return {Reply::Kind::closed, {}};
    case Transfer::timed_out:
      return {Reply::Kind::timed_out, {}};
    case Transfer::done:
      break;
  }
  if (!same(reply.token, own.token) || reply.magic != magic) return {Reply::Kind::stranger, {}};
  if (reply.admission == Admission::accepted) return {Reply::Kind::accepted, {}};
  const auto end = std::find(reply.refusal.begin(), reply.refusal.end(), '\0');
  const bool gone = reply.admission == Admission::peer_gone;
  return {gone ? Reply::Kind::peer_gone : Reply::Kind::refused,
          std::string(reply.refusal.begin(), end)};
}

}  // namespace lockstep::dist
