#include "lockstep/simt/races/shadow.h"

#include <algorithm>
#include <utility>

namespace simt::detail::races {

void Cell::keep(const Access& access) {
  if (!last.empty() && last.front().blocks != access.blocks) {
    std::vector<Access> kept;
    for (const Access& one : last)
      if (one.blocks == access.blocks ||
          std::ranges::none_of(kept, [&](const Access& other) { return other.same_kind(one); }))
        kept.push_back(one);
    last = std::move(kept);
  }
  int of_warp = 0;
  for (Access& one : last)
    if (one.same_kind(access) && one.blocks == access.blocks &&
        one.thread / 32 == access.thread / 32 && ++of_warp == 2) {
      one = access;
      return;
    }
  last.push_back(access);
}

void Undefined::set(std::uintptr_t address, std::size_t bytes, bool undefined) {
  for (const std::uintptr_t end = address + bytes; address < end;) {
    const std::uintptr_t number = address / page_bytes, first = address % page_bytes;
    const std::size_t count = std::min<std::size_t>(page_bytes - first, end - address);
    auto page = pages_.find(number);
    if (undefined && page == pages_.end())
      page = pages_.emplace(number, std::vector<bool>(page_bytes)).first;
    if (page != pages_.end()) {
      const auto begin = page->second.begin() + static_cast<std::ptrdiff_t>(first);
      std::fill_n(begin, count, undefined);
      if (!undefined && count == page_bytes) pages_.erase(page);
    }
    address += count;
  }
}

bool Undefined::any(std::uintptr_t address, std::size_t bytes) const {
  for (std::uintptr_t at = address; at < address + bytes; ++at) {
    const auto page = pages_.find(at / page_bytes);
    if (page != pages_.end() && page->second[at % page_bytes]) return true;
  }
  return false;
}

}  // namespace simt::detail::races
