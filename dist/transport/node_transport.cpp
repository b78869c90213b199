#include <type_traits>
#include <utility>

#include "lockstep/dist/transport/transports.h"

namespace lockstep::dist {
namespace {

class NodeTransport final : public Transport {
 public:
  NodeTransport(std::unique_ptr<Transport> between, std::unique_ptr<Transport> inside,
                NodeMap nodes)
      : between_(std::move(between)),
        inside_(std::move(inside)),
        nodes_(std::move(nodes)),
        node_(nodes_.node_of[index(between_->rank())]) {}

  int rank() const override { return between_->rank(); }
  int size() const override { return between_->size(); }
  std::string_view name() const override { return "shm+tcp"; }
  bool has_shared_memory() const override { return false; }

  std::size_t send(int peer, std::span<const std::byte> bytes) override {
    if (!is_inside(peer)) return between_->send(peer, bytes);
    return inside([&] { return note(inside_->send(nodes_.place_of[index(peer)], bytes)); });
  }

  std::size_t receive(int peer, std::span<std::byte> bytes) override {
    if (!is_inside(peer)) return between_->receive(peer, bytes);
    return inside([&] { return note(inside_->receive(nodes_.place_of[index(peer)], bytes)); });
  }

  std::size_t send_both(int peer, std::span<const std::byte> first,
                        std::span<const std::byte> second) override {
    return is_inside(peer) ? Transport::send_both(peer, first, second)
                           : between_->send_both(peer, first, second);
  }
  std::size_t receive_both(int peer, std::span<std::byte> first,
                           std::span<std::byte> second) override {
    return is_inside(peer) ? Transport::receive_both(peer, first, second)
                           : between_->receive_both(peer, first, second);
  }

  SharedRegion allocate(std::size_t bytes) override { return between_->allocate(bytes); }

  // While a peer of this node is waited for, memory naps: its naps are short. A nap of TCP's, in
  // poll(), would delay what comes through memory.
  void relax(unsigned round) override {
    if (std::exchange(inside_waits_, false))
      inside([&] { inside_->relax(round); });
    else
      between_->relax(round);
  }

  Seconds now() const override { return between_->now(); }

  void abort(std::string_view reason) noexcept override {
    if (inside_) inside_->abort(reason);
    between_->abort(reason);
  }

 private:
  bool is_inside(int peer) const { return inside_ && nodes_.node_of[index(peer)] == node_; }
  // The transport within the node numbers the node's ranks alone.
  template <class F>
  std::invoke_result_t<F> inside(F call) {
    try {
      return call();
    } catch (const LostPeer& lost) {
      throw LostPeer(nodes_.ranks[index(node_)][index(lost.rank)], lost.how);
    }
  }
  std::size_t note(std::size_t count) {
    if (count == 0) inside_waits_ = true;
    return count;
  }

  std::unique_ptr<Transport> between_, inside_;
  NodeMap nodes_;
  int node_;
  bool inside_waits_ = false;
};

}  // namespace

std::unique_ptr<Transport> node_transport(std::unique_ptr<Transport> between,
                                          std::unique_ptr<Transport> inside, NodeMap nodes) {
  return std::make_unique<NodeTransport>(std::move(between), std::move(inside), std::move(nodes));
}

}  // namespace lockstep::dist
