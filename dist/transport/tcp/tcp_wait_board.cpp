#include <cstring>

#include "lockstep/dist/transport/tcp/mesh.h"
#include "lockstep/dist/transport/wait_board.h"

namespace lockstep::dist {
namespace {

/// Notes as they lie in memory: the ranks of a world share a byte order. They are few, so that they
/// fit into the buffers of the kernel while a rank does not read them. If they do not, a note is
/// left out; a later one says the same.
class TcpWaitBoard final : public WaitBoard {
 public:
  TcpWaitBoard(int rank, std::vector<Descriptor> sockets)
      : WaitBoard(rank, static_cast<int>(sockets.size())) {
    for (Descriptor& socket : sockets) {
      if (socket) send_without_delay(socket.get());
      links_.push_back({.socket = std::move(socket)});
    }
  }

  WaitNote of(int rank) noexcept override {
    Link& link = links_[index(rank)];
    while (link.socket) {
      const auto bytes = std::as_writable_bytes(std::span(&link.arriving, 1));
      const std::ptrdiff_t count = receive_some(link.socket.get(), bytes.subspan(link.arrived));
      if (count == peer_closed) link.socket.close();
      if (count <= 0) break;
      link.arrived += static_cast<std::size_t>(count);
      if (link.arrived < bytes.size()) continue;
      link.newest = link.arriving;
      link.arrived = 0;
    }
    return link.newest;
  }

 private:
  struct Link {
    Descriptor socket{};
    WaitNote newest{}, arriving{}, leaving{};
    std::size_t arrived = 0, left = sizeof(WaitNote);  // bytes of these two
  };

  void publish(const WaitNote& note) noexcept override {
    for (int peer = 0; peer < size(); ++peer) {
      of(peer);  // makes room for theirs
      Link& link = links_[index(peer)];
      if (!link.socket || !push(link)) continue;
      link.leaving = note;
      link.left = 0;
      push(link);
    }
  }

  /// Sends the rest of the note that is leaving. True if nothing of it remains.
  static bool push(Link& link) noexcept {
    const auto bytes = std::as_bytes(std::span(&link.leaving, 1)).subspan(link.left);
    const std::ptrdiff_t count = send_some(link.socket.get(), bytes);
    if (count == peer_closed) link.socket.close();
    if (count > 0) link.left += static_cast<std::size_t>(count);
    return link.left == sizeof(WaitNote);
  }

  std::vector<Link> links_;  // by rank
};

}  // namespace

std::shared_ptr<WaitBoard> tcp_wait_board(Rendezvous& rendezvous) {
  std::vector<Descriptor> sockets = connect_mesh(rendezvous);
  return std::make_shared<TcpWaitBoard>(rendezvous.rank(), std::move(sockets));
}

}  // namespace lockstep::dist
