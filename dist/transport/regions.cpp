#include "lockstep/dist/transport/regions.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <utility>

#include "lockstep/dist/rendezvous/running_time.h"

namespace lockstep::dist {

namespace {

// AMD's Zen finds a line in its first cache by a hash of the address: bit 12 xor bit 27, and so on
// (Lipp et al., "Take A Way: Exploring the Security Implications of AMD's Cache Way Predictors",
// ASIA CCS 2020, figure 3). Of two lines with the same hash only one can be there at a time. A sum
// of two parts at such a distance, for instance of 256 MiB, takes 14 times as long.
bool is_crowded(std::size_t distance) {
  constexpr std::array<std::pair<int, int>, 8> pairs{
      {{12, 27}, {13, 26}, {14, 25}, {15, 20}, {16, 21}, {17, 22}, {18, 23}, {19, 24}}};
  return std::ranges::none_of(pairs, [&](const std::pair<int, int>& bits) {
    return ((distance >> bits.first ^ distance >> bits.second) & 1) == 1;
  });
}

}  // namespace

std::size_t parts_apart(std::size_t bytes, int ranks) {
  const int neighbours = std::min(ranks - 1, 7);  // 8 bits cannot keep all of many ranks apart
  std::size_t apart = whole_pages(bytes);
  const auto are_crowded = [&] {
    for (int k = 1; k <= neighbours; ++k)
      if (is_crowded(apart * index(k))) return true;
    return false;
  };
  while (are_crowded()) apart += page_bytes;
  return apart;
}

SharedRegion cut_into_parts(const std::shared_ptr<void>& memory, int ranks, std::size_t bytes) {
  SharedRegion region{.bytes = bytes, .base = {}, .keeper = memory};
  const std::size_t apart = parts_apart(bytes, ranks);
  for (int r = 0; r < ranks; ++r)
    region.base.push_back(static_cast<std::byte*>(memory.get()) + apart * index(r));
  return region;
}

std::shared_ptr<void> map_pages(std::size_t bytes, int flags, int descriptor) {
  void* const pages = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, descriptor, 0);
  if (pages == MAP_FAILED) return nullptr;
  return {pages, [bytes](void* p) { ::munmap(p, bytes); }};
}

std::shared_ptr<void> allocate_pages(std::size_t bytes) {
  std::shared_ptr<void> pages = map_pages(bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1);
  check<CommError>(pages != nullptr, "[allocate] no memory for {} bytes: {}", bytes,
                   std::strerror(errno));
  return pages;
}

std::shared_ptr<RegionTable::Round> RegionTable::arrive(int rank, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const int ranks = static_cast<int>(calls_.size());
  const std::size_t number = calls_[index(rank)]++;
  std::shared_ptr<Round>& shared = rounds_[number];
  if (!shared) {
    std::vector<int> all(index(ranks));
    std::iota(all.begin(), all.end(), 0);
    shared = std::make_shared<Round>(Round{bytes, rank, std::move(all), {}});
  }
  const std::shared_ptr<Round> round = shared;
  check<CommError>(round->bytes == bytes, "rank {} asks for {} bytes, rank {} for {}", rank, bytes,
                   round->first_rank, round->bytes);
  std::erase(round->missing, rank);
  if (!round->missing.empty()) return round;
  try {
    round->region =
        cut_into_parts(allocate_pages(parts_apart(bytes, ranks) * index(ranks)), ranks, bytes);
  } catch (...) {
    round->missing.push_back(rank);  // the others must not take it for done
    throw;
  }
  rounds_.erase(number);  // from here on the ranks hold it
  return round;
}

SharedRegion RegionTable::allocate(Transport& self, std::size_t bytes, Seconds timeout,
                                   const std::function<bool(int)>& is_gone) {
  const std::shared_ptr<Round> round = arrive(self.rank(), bytes);
  const auto missing = [&] {
    const std::lock_guard lock(mutex_);
    return round->missing;
  };
  RunningTime waited(self.longest_nap());
  std::vector<int> awaited;
  for (unsigned k = 0; !(awaited = missing()).empty(); ++k) {
    for (const int peer : awaited) {
      if (!is_gone(peer)) continue;
      self.relax(k);                             // throws its reason, if it gave one
      const std::vector<int> still = missing();  // it may have called, and left
      if (std::ranges::count(still, peer) > 0) throw LostPeer(peer, Fault::gone);
    }
    check<CommError>(waited.look(self.now()) < timeout,
                     "timed out after {:g} s: {} where {} bytes are to be allocated",
                     timeout.count(), describe_ranks(awaited, "missing"), bytes);
    self.relax(k);
  }
  return round->region;
}

}  // namespace lockstep::dist
