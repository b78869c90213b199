#pragma once
/// The term of one element in a fingerprint (fingerprint.h), on every device.

#include <bit>
#include <cstdint>

#include "lockstep/kernels/formulas/functors.h"

namespace lockstep::kernels {

/// Word w has the key salt + w * key_step: 2^32 divided by the golden ratio, and odd, so that no
/// two words of a tensor have the same.
inline constexpr std::uint32_t key_step = 2654435769;

LOCKSTEP_HOST_DEVICE inline std::uint64_t fingerprint_term(std::uint32_t word, std::uint32_t key) {
  const std::uint32_t keyed = word + key;
  return static_cast<std::uint64_t>(keyed) * keyed;
}

template <class Word>
LOCKSTEP_HOST_DEVICE inline Word rotated(Word word, int by) {
  return word << by | word >> (8 * static_cast<int>(sizeof word) - by);
}

/// Element i, mixed with what goes with it. (The numbers of places are without meaning: a change of
/// one of the three changes the word.)
LOCKSTEP_HOST_DEVICE inline std::uint64_t fingerprint_term(std::uint32_t salt, std::int64_t i,
                                                           float value, float second = 0,
                                                           float third = 0) {
  const std::uint32_t word = std::bit_cast<std::uint32_t>(value) ^
                             rotated(std::bit_cast<std::uint32_t>(second), 11) ^
                             rotated(std::bit_cast<std::uint32_t>(third), 22);
  return fingerprint_term(word, salt + static_cast<std::uint32_t>(i) * key_step);
}

LOCKSTEP_HOST_DEVICE inline std::uint64_t fingerprint_term(std::uint32_t salt, std::int64_t i,
                                                           double value, double second = 0,
                                                           double third = 0) {
  const std::uint64_t words = std::bit_cast<std::uint64_t>(value) ^
                              rotated(std::bit_cast<std::uint64_t>(second), 11) ^
                              rotated(std::bit_cast<std::uint64_t>(third), 22);
  const std::uint32_t key = salt + static_cast<std::uint32_t>(2 * i) * key_step;
  return fingerprint_term(static_cast<std::uint32_t>(words), key) +
         fingerprint_term(static_cast<std::uint32_t>(words >> 32), key + key_step);
}

/// A count of steps, as a word beside the elements.
LOCKSTEP_HOST_DEVICE inline std::uint64_t count_term(std::uint32_t salt, std::int64_t count) {
  return fingerprint_term(static_cast<std::uint32_t>(count), ~salt);
}

}  // namespace lockstep::kernels
