#pragma once
/// A short, stable hash of names: the same on every rank, which std::hash does not promise.

#include <cstdint>
#include <string_view>

namespace lockstep::dist {

/// FNV-1a, 64 bits (Fowler, Noll, Vo: draft-eastlake-fnv, section 2). Not for secrets.
constexpr std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3u;
  }
  return hash;
}

}  // namespace lockstep::dist
