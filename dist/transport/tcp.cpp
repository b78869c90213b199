#include "lockstep/dist/transport/tcp.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <thread>

#include "lockstep/dist/rendezvous/interfaces.h"
#include "lockstep/dist/rendezvous/join.h"

namespace lockstep::dist {

namespace {

bool contains(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

/// How long the word on why a connection ended may take.
constexpr Seconds word_time{0.2};

/// The connection to `peer` has ended. Was it killed, or did it give up because of another? Then it
/// told rank 0 why before it closed its sockets, and the word needs a moment. Without rank 0 no
/// word travels; since its end makes all others give up, it is the one to name. Throws PeerError as
/// soon as it is known what happened, at the latest when `patience` has passed.
void explain_loss(Rendezvous& rendezvous, int peer, const Deadline& patience) {
  const std::vector<int> gone = rendezvous.gone();
  if (const std::string reason = rendezvous.aborted(); !reason.empty()) throw PeerError(reason);
  check<PeerError>(gone.empty() || gone.front() != 0, "rank 0 is gone");
  check<PeerError>(!contains(gone, peer) && !patience.passed(), "rank {} is gone", peer);
}

Token mesh_token(const Token& token, std::string_view nonce) {
  return hmac(token, "mesh", {std::as_bytes(std::span(nonce))});
}

/// How the sockets come to be: rank r calls 0 ... r-1 and lets r+1 ... n-1 in.
class Mesh {
 public:
  explicit Mesh(Rendezvous& rendezvous)
      : rendezvous_(rendezvous), own_(rendezvous.credentials()), deadline_(rendezvous.timeout()) {
    sockets_.resize(index(own_.size));
  }
  std::vector<Descriptor> connect();

 private:
  std::vector<std::string> exchange_addresses(const std::string& mine);
  void connect_to_lower_ranks(const std::vector<std::string>& addresses);
  void accept_higher_ranks(Acceptor& acceptor);
  void await_admission(int peer, int socket);
  void check_present(const std::vector<int>& ranks);

  Rendezvous& rendezvous_;
  Credentials own_;
  Deadline deadline_;
  std::vector<Descriptor> sockets_;  // by rank
};

std::vector<Descriptor> Mesh::connect() {
  if (own_.size == 1) return std::move(sockets_);
  try {
    Endpoint here{.path = {}, .host = rendezvous_.address(), .port = 0};
    Descriptor listener = listen_on(here);
    here.port = local_port(listener.get());
    const std::vector<std::string> addresses = exchange_addresses(here.text());
    Acceptor acceptor(std::move(listener), own_, Purpose::mesh);
    connect_to_lower_ranks(addresses);
    accept_higher_ranks(acceptor);
  } catch (const Error& error) {
    rendezvous_.abort(error.what());
    throw;
  }
  for (const Descriptor& socket : sockets_)
    if (socket) send_without_delay(socket.get());
  return std::move(sockets_);
}

/// Rank 0 adds a token of its own making: any user of a machine can reach a port, and not every
/// launcher hands down a token. Where one does, that is mixed in: it has not been on the network.
std::vector<std::string> Mesh::exchange_addresses(const std::string& mine) {
  std::string prefix;
  if (own_.rank == 0) {
    const Token nonce = random_token();
    prefix.assign(reinterpret_cast<const char*>(nonce.data()), nonce.size());
  }
  std::vector<std::string> addresses = rendezvous_.all_gather("tcp addresses", prefix + mine);
  check<CommError>(addresses[0].size() > sizeof(Token), "[tcp] rank 0 gave no address");
  own_.token = mesh_token(own_.token, std::string_view(addresses[0]).substr(0, sizeof(Token)));
  addresses[0].erase(0, sizeof(Token));
  std::vector<std::string> hosts;
  for (const std::string& address : addresses) hosts.push_back(Endpoint::parse(address).host);
  check_reachable(hosts, own_.rank);
  return addresses;
}

/// A rank opens its acceptor when it has called all below it: so the ranks come in one after another.
void Mesh::connect_to_lower_ranks(const std::vector<std::string>& addresses) {
  for (int peer = 0; peer < own_.rank; ++peer) {
    const Endpoint where = Endpoint::parse(addresses[index(peer)]);
    std::string why = "timed out";
    Descriptor& socket = sockets_[index(peer)];
    while (!(socket = greet(where, own_, Purpose::mesh, deadline_, why)) && !deadline_.passed()) {
      check_present({peer});
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    check<CommError>(static_cast<bool>(socket), "[tcp] rank {} cannot connect to rank {} at {}: {}",
                     own_.rank, peer, where.text(), why);
    await_admission(peer, socket.get());
  }
}

void Mesh::await_admission(int peer, int socket) {
  Reply reply = prove(socket, own_, Purpose::mesh, deadline_);
  if (reply.kind == Reply::Kind::accepted) reply = read_answer(socket, deadline_);
  for (const Deadline patience(word_time); reply.kind == Reply::Kind::closed;
       std::this_thread::sleep_for(std::chrono::milliseconds(1)))
    explain_loss(rendezvous_, peer, patience);
  check<CommError>(reply.kind == Reply::Kind::accepted,
                   "[tcp] rank {}: rank {} did not answer its call", own_.rank, peer);
}

void Mesh::check_present(const std::vector<int>& ranks) {
  for (const int peer : rendezvous_.gone())
    check<PeerError>(!contains(ranks, peer), "[tcp] rank {} is gone before it was connected", peer);
  if (const std::string reason = rendezvous_.aborted(); !reason.empty()) throw PeerError(reason);
}

void Mesh::accept_higher_ranks(Acceptor& acceptor) {
  while (true) {
    std::vector<int> missing;
    for (int peer = own_.rank + 1; peer < own_.size; ++peer)
      if (!sockets_[index(peer)]) missing.push_back(peer);
    if (missing.empty()) return;
    check_present(missing);
    check<CommError>(!deadline_.passed(), "[tcp] rank {}: after {:g} s {}", own_.rank,
                     rendezvous_.timeout().count(), describe_ranks(missing, "missing"));
    for (AcceptedPeer& peer : acceptor.wait(std::min(Seconds(0.02), deadline_.left()))) {
      if (peer.version != protocol_version || !contains(missing, peer.rank)) continue;
      answer(peer.socket.get(), Admission::accepted);
      sockets_[index(peer.rank)] = std::move(peer.socket);
    }
  }
}

class TcpTransport final : public Transport {
 public:
  TcpTransport(std::shared_ptr<Rendezvous> rendezvous, std::vector<Descriptor> sockets)
      : rendezvous_(std::move(rendezvous)) {
    for (Descriptor& socket : sockets) links_.push_back({std::move(socket), 0});
    entries_.reserve(links_.size());
  }
  ~TcpTransport() override;

  int rank() const override { return rendezvous_->rank(); }
  int size() const override { return rendezvous_->size(); }
  std::string_view name() const override { return "tcp"; }
  bool has_shared_memory() const override { return false; }

  std::size_t send(int peer, std::span<const std::byte> bytes) override;
  std::size_t receive(int peer, std::span<std::byte> bytes) override;
  SharedRegion allocate(std::size_t bytes) override;
  void relax(unsigned round) override;
  Seconds now() const override { return std::chrono::steady_clock::now().time_since_epoch(); }
  void abort(std::string_view reason) noexcept override;

 private:
  struct Link {
    Descriptor socket;
    short waits_for = 0;  // POLLIN, POLLOUT: what could not be done last time
  };
  struct Loss {
    int peer;
    Deadline patience{word_time};
  };
  std::size_t moved(Link& link, int peer, std::ptrdiff_t count, short event, bool wanted);

  std::shared_ptr<Rendezvous> rendezvous_;
  std::vector<Link> links_;      // by peer
  std::vector<pollfd> entries_;  // scratch of relax
  std::optional<Loss> loss_;     // a connection that has ended, until it is known why
  Seconds next_look_{0};
};

/// Closing a socket with unread bytes throws away what the other end has not received yet. So: say
/// goodbye, take what is there, close.
TcpTransport::~TcpTransport() {
  std::array<std::byte, 4096> rest;
  for (const Link& link : links_) {
    if (!link.socket) continue;
    ::shutdown(link.socket.get(), SHUT_WR);
    while (receive_some(link.socket.get(), rest) > 0) {
    }
  }
}

/// The result of a transfer, and a note of what relax() has to wait for.
std::size_t TcpTransport::moved(Link& link, int peer, std::ptrdiff_t count, short event,
                                bool wanted) {
  if (count == peer_closed) {
    if (!loss_) loss_ = Loss{.peer = peer};
    explain_loss(*rendezvous_, loss_->peer, loss_->patience);
    return 0;
  }
  if (count == 0 && wanted) link.waits_for = static_cast<short>(link.waits_for | event);
  return static_cast<std::size_t>(count);
}

std::size_t TcpTransport::send(int peer, std::span<const std::byte> bytes) {
  Link& link = links_[index(peer)];
  return moved(link, peer, send_some(link.socket.get(), bytes), POLLOUT, !bytes.empty());
}

std::size_t TcpTransport::receive(int peer, std::span<std::byte> bytes) {
  Link& link = links_[index(peer)];
  return moved(link, peer, receive_some(link.socket.get(), bytes), POLLIN, !bytes.empty());
}

SharedRegion TcpTransport::allocate(std::size_t bytes) {
  fail<CommError>("[tcp] a region of {} bytes: ranks do not share memory", bytes);
}

void TcpTransport::relax(unsigned round) {
  if (loss_) {
    explain_loss(*rendezvous_, loss_->peer, loss_->patience);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return;
  }
  constexpr unsigned yield_rounds = 20;
  if (round < yield_rounds) {
    std::this_thread::yield();
    return;
  }
  entries_.clear();
  for (const Link& link : links_)
    if (link.waits_for != 0) entries_.push_back({link.socket.get(), link.waits_for, 0});
  if (entries_.empty())  // no bytes are waited for, but a GPU perhaps
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  else
    ::poll(entries_.data(), entries_.size(), 20);
  for (Link& link : links_) link.waits_for = 0;  // noted again by the next fruitless try
  if (now() < next_look_) return;
  next_look_ = now() + std::chrono::milliseconds(20);
  if (const std::string reason = rendezvous_->aborted(); !reason.empty()) throw PeerError(reason);
}

void TcpTransport::abort(std::string_view reason) noexcept {
  rendezvous_->abort(reason);
  for (const Link& link : links_)
    if (link.socket) ::shutdown(link.socket.get(), SHUT_RDWR);
}

}  // namespace

std::unique_ptr<Transport> tcp_transport(std::shared_ptr<Rendezvous> rendezvous) {
  std::vector<Descriptor> sockets = Mesh(*rendezvous).connect();
  return std::make_unique<TcpTransport>(std::move(rendezvous), std::move(sockets));
}

}  // namespace lockstep::dist
