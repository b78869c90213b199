#include "lockstep/simt/counters/requests.h"

#include <algorithm>
#include <bit>

namespace simt::detail::counters {
namespace {

/// The addresses of the lanes [first, end) that have one.
struct Addresses {
  std::array<std::uintptr_t, 32> values;
  int count = 0;

  Addresses(const Request& request, int first, int end) {
    for (int lane = first; lane < end; ++lane)
      if (request.lanes >> lane & 1u) values[count++] = request.addresses[lane];
  }
  void sort() { std::sort(values.begin(), values.begin() + count); }
};

/// The most different words of 4 bytes that lie in one bank.
std::uint64_t wavefronts_of(const Addresses& addresses, unsigned bytes) {
  const unsigned words_each = std::max(bytes, 4u) / 4;
  std::array<std::uintptr_t, 32 * 4> words;
  int count = 0;
  for (int i = 0; i < addresses.count; ++i)
    for (unsigned w = 0; w < words_each; ++w) words[count++] = addresses.values[i] / 4 + w;
  std::sort(words.begin(), words.begin() + count);
  const auto end = std::unique(words.begin(), words.begin() + count);
  std::array<std::uint8_t, 32> in_bank{};
  for (auto word = words.begin(); word != end; ++word) ++in_bank[*word % 32];
  return *std::max_element(in_bank.begin(), in_bank.end());
}

}  // namespace

std::uint64_t Sectors::bytes() const {
  std::uint64_t count = 0;
  for (const auto& [page, sectors] : pages_) count += std::popcount(sectors);
  return count * sector_bytes;
}

Sum cost_of_global(const Request& request, unsigned bytes, Sectors& sectors) {
  Addresses addresses(request, 0, 32);
  addresses.sort();
  Sum sum{.requests = 1, .bytes = std::uint64_t{bytes} * addresses.count};
  std::uint64_t distinct = 0;
  std::uintptr_t end = 0, next_sector = 0;  // of the bytes, and sectors, that were seen
  for (int i = 0; i < addresses.count; ++i) {
    const std::uintptr_t begin = addresses.values[i], after = begin + bytes;
    distinct += after - std::clamp(end, begin, after);
    end = after;
    for (std::uintptr_t sector = std::max(begin / sector_bytes, next_sector);
         sector <= (after - 1) / sector_bytes; ++sector) {
      ++sum.sectors;
      sectors.add(sector);
      next_sector = sector + 1;
    }
  }
  sum.fewest_sectors = (distinct + sector_bytes - 1) / sector_bytes;
  return sum;
}

Sum cost_of_shared(const Request& request, unsigned bytes) {
  Sum sum{.requests = 1, .bytes = std::uint64_t{bytes} * std::popcount(request.lanes)};
  const int at_once = bytes <= 4 ? 32 : bytes == 8 ? 16 : 8;  // lanes
  for (int first = 0; first < 32; first += at_once) {
    const Addresses addresses(request, first, first + at_once);
    if (addresses.count == 0) continue;
    sum.wavefronts += wavefronts_of(addresses, bytes);
    ++sum.fewest_wavefronts;
  }
  return sum;
}

void Instruction::execute(int thread, std::uint32_t warp_lanes, std::uintptr_t address,
                          Sectors& sectors) {
  const int number = thread / 32;
  const auto index = static_cast<std::size_t>(number);
  const int lane = thread % 32;
  if (index >= warps_.size()) warps_.resize(index + 1);
  Warp& warp = warps_[index];
  const std::size_t at = warp.executions[lane]++ - warp.first;
  if (at == warp.open.size()) warp.open.emplace_back();
  Request& request = warp.open[at];
  request.addresses[lane] = address;
  request.lanes |= 1u << lane;
  while (warp.counted < warp.open.size() && warp.open[warp.counted].lanes == warp_lanes)
    count(warp.open[warp.counted++], number, sectors);
  if (warp.counted < warp.open.size()) return;
  warp.first += static_cast<std::uint32_t>(warp.open.size());
  warp.open.clear();
  warp.counted = 0;
}

void Instruction::end_blocks(Sectors& sectors) {
  int number = 0;
  for (Warp& warp : warps_) {
    for (std::size_t i = warp.counted; i < warp.open.size(); ++i)
      count(warp.open[i], number, sectors);
    ++number;
    warp.executions = {};
    warp.first = 0;
    warp.open.clear();
    warp.counted = 0;
  }
}

void Instruction::count(const Request& request, int warp, Sectors& sectors) {
  if (first_warp_ < 0) first_warp_ = warp;
  if (warp == first_warp_ && first_.size() < most_first) first_.push_back(request);
  sum_ += simt::counters::is_global(what_) ? cost_of_global(request, bytes_, sectors)
                                           : cost_of_shared(request, bytes_);
}

}  // namespace simt::detail::counters
