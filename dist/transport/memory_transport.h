#pragma once
/// The transport over memory that all ranks reach: ranks are threads (threads.cpp) or processes
/// that map the same pages (shm.cpp). The memory, at first all zero, holds
///
///   who gave up, and why · is rank 0, 1, ... here? · ring 0->1 · ring 0->2 · ... · ring n-1->n-2
///
/// Thread-safety: as Transport. What ranks share is atomic, or ordered by something atomic.

#include <algorithm>
#include <bit>
#include <memory>
#include <vector>

#include "lockstep/dist/transport/backoff.h"
#include "lockstep/dist/transport/byte_ring.h"
#include "lockstep/dist/transport/presence.h"
#include "lockstep/dist/transport/transport.h"

namespace lockstep::dist {

class MemoryTransport : public Transport {
 public:
  /// `memory`: bytes_needed() zeroed bytes, aligned to a page, the same ones for every rank.
  MemoryTransport(std::shared_ptr<void> memory, int rank, int size, std::size_t stream_bytes);
  /// This rank leaves: others notice when they need it.
  ~MemoryTransport() override { presence_.set(rank_, Presence::left); }
  static std::size_t bytes_needed(int size, std::size_t stream_bytes);

  int rank() const final { return rank_; }
  int size() const final { return size_; }
  bool has_shared_memory() const final { return true; }
  std::size_t send(int peer, std::span<const std::byte> bytes) final;
  std::size_t receive(int peer, std::span<std::byte> bytes) final;
  void relax(unsigned round) final;
  bool spins(unsigned round) const final { return backoff_.spins(round); }
  Seconds now() const final { return std::chrono::steady_clock::now().time_since_epoch(); }
  Seconds roughly_now() const final;
  void abort(std::string_view reason) noexcept override { presence_.abort(reason); }

 protected:
  const PresenceBoard presence_;

 private:
  /// Called while this rank naps. Where ranks are processes: looks whether some have ended.
  virtual void look_for_gone_ranks() {}

  std::shared_ptr<void> memory_;
  int rank_, size_;
  std::vector<ByteRing> out_, in_;  // by peer
  Backoff backoff_;
};

/// Capacity of each stream between `ranks` ranks of one machine: 256 KiB, less where all streams
/// together would take more than 64 MiB, at least 4 KiB. A power of two.
constexpr std::size_t stream_capacity(int ranks) {
  const std::size_t streams = ranks < 2 ? 1 : index(ranks) * index(ranks - 1);
  const std::size_t share = (std::size_t{64} << 20) / streams;
  return std::clamp(std::bit_floor(share), std::size_t{4} << 10, std::size_t{256} << 10);
}

}  // namespace lockstep::dist
