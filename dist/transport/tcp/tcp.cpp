#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <optional>
#include <thread>

#include "lockstep/dist/transport/tcp/checked_stream.h"
#include "lockstep/dist/transport/tcp/mesh.h"
#include "lockstep/dist/transport/transports.h"

namespace lockstep::dist {

namespace {

/// The connection to `peer` has ended. Was it killed, or did it give up because of another? Then it
/// told rank 0 why before it closed its sockets, and the reason needs a moment to arrive. Without
/// rank 0 no reason arrives; since its end makes all others give up, it is the one to name. Throws
/// PeerError as soon as it is known what happened, at the latest when `patience` has passed.
void explain_loss(Rendezvous& rendezvous, int peer, const Deadline& patience) {
  check_here(rendezvous, {0, peer});
  if (patience.passed()) throw LostPeer(peer, Fault::gone);
}

class TcpTransport final : public Transport {
 public:
  TcpTransport(std::shared_ptr<Rendezvous> rendezvous, std::vector<Connection> connections)
      : rendezvous_(std::move(rendezvous)) {
    for (Connection& connection : connections) {
      if (connection) send_without_delay(connection.get());
      links_.push_back({CheckedStream(std::move(connection)), 0});
    }
    entries_.reserve(links_.size());
  }
  ~TcpTransport() override;

  int rank() const override { return rendezvous_->rank(); }
  int size() const override { return rendezvous_->size(); }
  std::string_view name() const override { return "tcp"; }
  bool has_shared_memory() const override { return false; }

  std::size_t send(int peer, std::span<const std::byte> bytes) override {
    return send_both(peer, bytes, {});
  }
  std::size_t receive(int peer, std::span<std::byte> bytes) override {
    return receive_both(peer, bytes, {});
  }
  std::size_t send_both(int peer, std::span<const std::byte> first,
                        std::span<const std::byte> second) override {
    return moved(peer, links_[index(peer)].stream.send(first, second),
                 first.empty() && second.empty(), POLLOUT);
  }
  std::size_t receive_both(int peer, std::span<std::byte> first,
                           std::span<std::byte> second) override {
    try {
      return moved(peer, links_[index(peer)].stream.receive(first, second),
                   first.empty() && second.empty(), POLLIN);
    } catch (const PeerError&) {
      throw;
    } catch (const CommError& error) {
      fail<CommError>("from rank {}: {}", peer, error.what());
    }
  }
  SharedRegion allocate(std::size_t bytes) override {
    fail<CommError>("[tcp] a region of {} bytes: ranks do not share memory", bytes);
  }
  void relax(unsigned round) override;
  Seconds now() const override { return std::chrono::steady_clock::now().time_since_epoch(); }
  void abort(std::string_view reason) noexcept override;

 private:
  struct Link {
    CheckedStream stream;
    int socket() const { return stream.socket().get(); }
    short waits_for = 0;  // POLLIN, POLLOUT: what could not be done last time
  };
  struct Loss {
    int peer;
    Deadline patience{reason_time};
  };
  std::size_t moved(int peer, std::ptrdiff_t count, bool nothing_wanted, short event);

  std::shared_ptr<Rendezvous> rendezvous_;
  std::vector<Link> links_;      // by peer
  std::vector<pollfd> entries_;  // scratch of relax
  std::optional<Loss> loss_;     // a connection that has ended, until it is known why
  Seconds next_look_{0};
};

/// Closing a socket with unread bytes throws away what the other end has not received yet.
/// Therefore end our direction, read what is there, close.
TcpTransport::~TcpTransport() {
  std::array<std::byte, 4096> rest;
  for (const Link& link : links_) {
    if (!link.stream.socket()) continue;
    ::shutdown(link.socket(), SHUT_WR);
    while (receive_some(link.socket(), rest) > 0) {
    }
  }
}

/// The result of a transfer. Notes what relax() has to wait for.
std::size_t TcpTransport::moved(int peer, std::ptrdiff_t count, bool nothing_wanted, short event) {
  if (count == peer_closed) {
    if (!loss_) loss_ = Loss{.peer = peer};
    explain_loss(*rendezvous_, loss_->peer, loss_->patience);
    return 0;
  }
  short& waits_for = links_[index(peer)].waits_for;
  if (count == 0 && !nothing_wanted) waits_for = static_cast<short>(waits_for | event);
  return static_cast<std::size_t>(count);
}

void TcpTransport::relax(unsigned round) {
  if (loss_) {
    explain_loss(*rendezvous_, loss_->peer, loss_->patience);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return;
  }
  constexpr unsigned yield_rounds = 200;  // some 100 us: to be woken up takes as long
  if (round < yield_rounds) {
    std::this_thread::yield();
    return;
  }
  entries_.clear();
  for (const Link& link : links_)
    if (link.waits_for != 0) entries_.push_back({link.socket(), link.waits_for, 0});
  if (entries_.empty())  // it waits for no bytes, but perhaps for a GPU
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  else
    ::poll(entries_.data(), entries_.size(), 20);
  for (Link& link : links_) link.waits_for = 0;  // the next try that moves nothing notes it again
  if (now() < next_look_) return;
  next_look_ = now() + std::chrono::milliseconds(20);
  if (const std::string reason = rendezvous_->aborted(); !reason.empty()) throw PeerError(reason);
}

void TcpTransport::abort(std::string_view reason) noexcept {
  rendezvous_->abort(reason);
  for (const Link& link : links_)
    if (link.stream.socket()) ::shutdown(link.socket(), SHUT_RDWR);
}

}  // namespace

std::unique_ptr<Transport> tcp_transport(std::shared_ptr<Rendezvous> rendezvous) {
  std::vector<Connection> connections = connect_mesh(*rendezvous);
  return tcp_transport(std::move(rendezvous), std::move(connections));
}

std::unique_ptr<Transport> tcp_transport(std::shared_ptr<Rendezvous> rendezvous,
                                         std::vector<Connection> connections) {
  return std::make_unique<TcpTransport>(std::move(rendezvous), std::move(connections));
}

}  // namespace lockstep::dist
