#pragma once
/// Regions for ranks that share an address space (threads; the simulated world).

#include <functional>
#include <map>
#include <mutex>

#include "lockstep/dist/transport/transport.h"

namespace lockstep::dist {

constexpr std::size_t page_bytes = 4096;
/// `bytes` rounded up to whole pages, at least one.
constexpr std::size_t whole_pages(std::size_t bytes) {
  return bytes == 0 ? page_bytes : (bytes + page_bytes - 1) / page_bytes * page_bytes;
}

/// From the begin of a part to that of the next: whole pages, at least `bytes`, so that no two of
/// neighbouring parts push each other out of a core's first cache (regions.cpp says how).
std::size_t parts_apart(std::size_t bytes, int ranks);

/// The region whose parts lie in `memory`, parts_apart(bytes, ranks) from each other.
SharedRegion cut_into_parts(const std::shared_ptr<void>& memory, int ranks, std::size_t bytes);

/// Maps pages to read and write, until the last owner is gone. Null, with errno, if that fails.
std::shared_ptr<void> map_pages(std::size_t bytes, int flags, int descriptor);

/// Zeroed pages of this process. Throws CommError if there is no memory.
std::shared_ptr<void> allocate_pages(std::size_t bytes);

/// Transport::allocate() of all ranks: the last rank that calls makes the region for all.
/// Thread-safe.
class RegionTable {
 public:
  explicit RegionTable(int ranks) : calls_(index(ranks)) {}

  /// Waits with self.relax(). Throws as Transport::allocate(), and PeerError if `is_gone` a rank
  /// that has not called.
  SharedRegion allocate(Transport& self, std::size_t bytes, Seconds timeout,
                        const std::function<bool(int rank)>& is_gone);

 private:
  /// One call of every rank.
  struct Round {
    std::size_t bytes = 0;
    int first_rank = 0;        // that called
    std::vector<int> missing;  // that have not called yet
    SharedRegion region;
  };
  std::shared_ptr<Round> arrive(int rank, std::size_t bytes);

  std::mutex mutex_;
  std::vector<std::size_t> calls_;                        // by rank
  std::map<std::size_t, std::shared_ptr<Round>> rounds_;  // by call, those that wait for ranks
};

}  // namespace lockstep::dist
