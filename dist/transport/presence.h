#pragma once
/// What ranks that share memory know of each other: who is here, and who gave up and why.
///
/// Thread-safety: what ranks share is atomic, or ordered by something atomic.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "lockstep/dist/rendezvous/ranks.h"

namespace lockstep::dist {

enum class Presence : std::uint32_t {
  here,
  left,  ///< it has ended its use of the memory
  gone,  ///< it has ended without leaving
};

/// A handle on bytes_needed() bytes that all ranks reach, aligned to a page, which must outlive it.
/// All zero means: no rank gave up, all are here.
class PresenceBoard {
 public:
  static constexpr std::size_t bytes_needed(int ranks) {
    return sizeof(Shared) + sizeof(Rank) * index(ranks);
  }
  explicit PresenceBoard(void* memory) : shared_(static_cast<Shared*>(memory)) {}

  Presence of(int rank) const { return place(rank).load(std::memory_order_acquire); }
  void set(int rank, Presence state) const;  ///< unless it has left or is gone

  /// Tells all ranks that this one gives up. The first reason wins.
  void abort(std::string_view reason) const noexcept;
  /// Throws PeerError with the reason if any rank gave up.
  void check_aborted() const {
    if (shared_->aborted.load(std::memory_order_acquire) != Abort::none) [[unlikely]]
      throw_reason();
  }
  /// Throws PeerError: the reason of a rank that gave up, or that `peer` is not here.
  [[noreturn]] void fail_without(int peer) const;

 private:
  enum class Abort : std::uint32_t { none, writing, written };
  struct alignas(64) Shared {
    std::atomic<Abort> aborted;
    std::array<char, 4092> reason;  // ended by a 0
  };
  struct alignas(64) Rank {
    std::atomic<Presence> presence;
  };
  std::atomic<Presence>& place(int rank) const {
    return reinterpret_cast<Rank*>(shared_ + 1)[rank].presence;
  }
  [[noreturn]] void throw_reason() const;

  Shared* shared_;
};

}  // namespace lockstep::dist
