#include <cstring>

#include "lockstep/dist/transport/tcp/checked_stream.h"
#include "lockstep/dist/transport/tcp/mesh.h"
#include "lockstep/dist/transport/wait_board.h"

namespace lockstep::dist {
namespace {

/// Notes as they lie in memory: the ranks of a world share a byte order. They are few, so that they
/// fit into the buffers of the kernel while a rank does not read them. If they do not, a note is
/// left out; a later one says the same. A peer whose notes were changed on the way tells no more.
class TcpWaitBoard final : public WaitBoard {
 public:
  TcpWaitBoard(int rank, std::vector<Connection> connections)
      : WaitBoard(rank, static_cast<int>(connections.size())) {
    for (Connection& connection : connections) {
      if (connection) send_without_delay(connection.get());
      links_.push_back({.stream = CheckedStream(std::move(connection))});
    }
  }

  WaitNote of(int rank) noexcept override {
    Link& link = links_[index(rank)];
    while (link.stream.socket()) {
      const auto bytes = std::as_writable_bytes(std::span(&link.arriving, 1));
      const std::size_t count =
          moved(link, [&] { return link.stream.receive(bytes.subspan(link.arrived)); });
      if (count == 0) break;
      link.arrived += count;
      if (link.arrived < bytes.size()) continue;
      link.newest = link.arriving;
      link.arrived = 0;
    }
    return link.newest;
  }

 private:
  struct Link {
    CheckedStream stream;
    WaitNote newest{}, arriving{}, leaving{};
    std::size_t arrived = 0, left = sizeof(WaitNote);  // bytes of these two
  };

  void publish(const WaitNote& note) noexcept override {
    for (int peer = 0; peer < size(); ++peer) {
      of(peer);  // makes room for theirs
      Link& link = links_[index(peer)];
      if (!link.stream.socket() || !push(link)) continue;
      link.leaving = note;
      link.left = 0;
      push(link);
    }
  }

  /// Sends the rest of the note that is leaving. True if nothing of it remains.
  static bool push(Link& link) noexcept {
    const auto bytes = std::as_bytes(std::span(&link.leaving, 1)).subspan(link.left);
    link.left += moved(link, [&] { return link.stream.send(bytes); });
    return link.left == sizeof(WaitNote);
  }

  /// What `move` returns. The link is closed if the peer is gone, or what it sent was changed.
  static std::size_t moved(Link& link, const auto& move) noexcept {
    try {
      const std::ptrdiff_t count = move();
      if (count != peer_closed) return static_cast<std::size_t>(count);
    } catch (const Error&) {
    }
    link.stream.close();
    return 0;
  }

  std::vector<Link> links_;  // by rank
};

}  // namespace

std::shared_ptr<WaitBoard> tcp_wait_board(Rendezvous& rendezvous) {
  return std::make_shared<TcpWaitBoard>(rendezvous.rank(), connect_mesh(rendezvous));
}

}  // namespace lockstep::dist
