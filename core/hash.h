#pragma once
/// A short, stable hash of names and numbers. It is the same on every rank, which std::hash does
/// not promise. Not for secrets: an attacker who can choose the input can choose the hash (for
/// that, digest.h).

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace lockstep {

/// FNV-1a, 64 bits (Fowler, Noll, Vo: draft-eastlake-fnv, section 2), piece by piece:
///
///   Fnv1a().add("lr").add(std::bit_cast<std::uint64_t>(lr)).value()
class Fnv1a {
 public:
  constexpr Fnv1a& add(std::string_view bytes) {
    for (const char c : bytes) add_byte(static_cast<unsigned char>(c));
    return *this;
  }
  /// The eight bytes of `number`, the lowest first.
  constexpr Fnv1a& add(std::uint64_t number) {
    for (int shift = 0; shift < 64; shift += 8)
      add_byte(static_cast<unsigned char>(number >> shift & 0xff));
    return *this;
  }
  /// The hash of everything added so far.
  constexpr std::uint64_t value() const { return hash_; }

 private:
  constexpr void add_byte(unsigned char byte) {
    hash_ ^= byte;
    hash_ *= 0x100000001b3u;
  }

  std::uint64_t hash_ = 0xcbf29ce484222325u;
};

constexpr std::uint64_t fnv1a(std::string_view bytes) { return Fnv1a().add(bytes).value(); }

/// A hash of many bytes, eight at a time, at some GB/s. For each word the map from the hash before
/// it to that after it is one-to-one: what differs in one word never has the same hash. Else two
/// inputs have the same one by a chance of about 2^-64.
inline std::uint64_t hash_bytes(std::span<const std::byte> bytes) {
  std::uint64_t hash = 0x9e3779b97f4a7c15u ^ bytes.size();
  for (std::size_t at = 0; at < bytes.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min<std::size_t>(8, bytes.size() - at));
    hash = (hash ^ word) * 0xbf58476d1ce4e5b9u;  // odd
    hash ^= hash >> 32;  // else the highest bits of two words could cancel each other
  }
  return hash;
}

}  // namespace lockstep
