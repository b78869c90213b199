#include "lockstep/dist/transport/memory_transport.h"

#include <array>
#include <thread>

namespace lockstep::dist {

/// What lies before the rings. Zeroed memory means: nobody gave up, everybody is here.
struct alignas(64) MemoryTransport::Shared {
  enum class Abort : std::uint32_t { none, writing, written };
  std::atomic<Abort> aborted;
  std::array<char, 4092> reason;  // ended by a 0

  struct alignas(64) Rank {
    std::atomic<Presence> presence;
  };
  Rank& rank(int r) { return reinterpret_cast<Rank*>(this + 1)[r]; }
  Presence presence(int r) { return rank(r).presence.load(std::memory_order_acquire); }

  void check_aborted() const {
    if (aborted.load(std::memory_order_acquire) != Abort::none) [[unlikely]]
      throw_reason();
  }
  [[noreturn]] void throw_reason() const;

  /// Where the ring between two ranks begins. There is none from a rank to itself.
  static std::size_t ring(int size, std::size_t stream_bytes, int from, int to) {
    const int number = from * (size - 1) + (to < from ? to : to - 1);
    return sizeof(Shared) + sizeof(Rank) * index(size) +
           ByteRing::bytes_needed(stream_bytes) * index(number);
  }
};

MemoryTransport::MemoryTransport(std::shared_ptr<void> memory, int rank, int size,
                                 std::size_t stream_bytes)
    : memory_(std::move(memory)), rank_(rank), size_(size), backoff_(size) {
  const auto ring = [&](int from, int to) {
    if (from == to) return ByteRing();
    auto* const begin = static_cast<std::byte*>(memory_.get());
    return ByteRing(begin + Shared::ring(size, stream_bytes, from, to), stream_bytes);
  };
  for (int peer = 0; peer < size; ++peer) {
    out_.push_back(ring(rank, peer));
    in_.push_back(ring(peer, rank));
  }
}

MemoryTransport::~MemoryTransport() { set_presence(rank_, Presence::left); }

std::size_t MemoryTransport::bytes_needed(int size, std::size_t stream_bytes) {
  return Shared::ring(size, stream_bytes, size, 0);
}

std::size_t MemoryTransport::send(int peer, std::span<const std::byte> bytes) {
  shared().check_aborted();
  if (shared().presence(peer) != Presence::here) [[unlikely]]
    fail_without(peer);
  return out_[index(peer)].write(bytes);
}

std::size_t MemoryTransport::receive(int peer, std::span<std::byte> bytes) {
  shared().check_aborted();
  ByteRing& ring = in_[index(peer)];
  const std::size_t count = ring.read(bytes);
  if (count > 0 || bytes.empty() || shared().presence(peer) == Presence::here) return count;
  const std::size_t last = ring.read(bytes);  // what it sent before it left, after our first look
  if (last == 0) fail_without(peer);
  return last;
}

void MemoryTransport::relax(unsigned round) {
  shared().check_aborted();
  if (backoff_.relax(round)) look_for_gone_ranks();
}

void MemoryTransport::abort(std::string_view reason) noexcept {
  auto expected = Shared::Abort::none;
  if (!shared().aborted.compare_exchange_strong(expected, Shared::Abort::writing)) return;
  const std::size_t length = std::min(reason.size(), shared().reason.size() - 1);
  std::copy_n(reason.begin(), length, shared().reason.begin());
  shared().aborted.store(Shared::Abort::written, std::memory_order_release);
}

void MemoryTransport::Shared::throw_reason() const {
  for (int i = 0; i < 1000; ++i, std::this_thread::yield())
    if (aborted.load(std::memory_order_acquire) == Abort::written)
      throw PeerError(std::string(reason.data()));
  throw PeerError("a rank gave up");  // and was killed while it wrote why
}

MemoryTransport::Presence MemoryTransport::presence(int rank) const {
  return shared().presence(rank);
}

void MemoryTransport::set_presence(int rank, Presence state) {
  Presence expected = Presence::here;
  shared().rank(rank).presence.compare_exchange_strong(expected, state);
}

void MemoryTransport::check_aborted() const { shared().check_aborted(); }

void MemoryTransport::fail_without(int peer) const {
  shared().check_aborted();  // it gave its reason before it left
  fail<PeerError>("rank {} {}", peer, presence(peer) == Presence::left ? "left" : "is gone");
}

}  // namespace lockstep::dist
