#pragma once
/// The term of one element in a fingerprint (fingerprint.h), on every device.

#include <bit>
#include <cstdint>

#include "lockstep/kernels/formulas/functors.h"

namespace lockstep::kernels {

/// Word w has the key salt + w * key_step: 2^32 divided by the golden ratio, and odd, so that no
/// two words of a tensor have the same.
inline constexpr std::uint32_t key_step = 2654435769;

/// From the key of one element to that of the next one. (A loop that adds it is faster on the CPU
/// than one that multiplies.)
template <class T>
inline constexpr std::uint32_t element_key_step =
    key_step* static_cast<std::uint32_t>(sizeof(T) / sizeof(std::uint32_t));

template <class T>
LOCKSTEP_HOST_DEVICE inline std::uint32_t element_key(std::uint32_t salt, std::int64_t i) {
  return salt + static_cast<std::uint32_t>(i) * element_key_step<T>;
}

LOCKSTEP_HOST_DEVICE inline std::uint64_t word_term(std::uint32_t key, std::uint32_t word) {
  const std::uint32_t keyed = word + key;
  return static_cast<std::uint64_t>(keyed) * keyed;
}

template <class Word>
LOCKSTEP_HOST_DEVICE inline Word rotated(Word word, int by) {
  return word << by | word >> (8 * static_cast<int>(sizeof word) - by);
}

/// An element, mixed with what goes with it. (The numbers of places are without meaning: a change
/// of one of the four changes the word.)
LOCKSTEP_HOST_DEVICE inline std::uint64_t fingerprint_term(std::uint32_t key, float value,
                                                           float second = 0, float third = 0,
                                                           float fourth = 0) {
  const std::uint32_t word = std::bit_cast<std::uint32_t>(value) ^
                             rotated(std::bit_cast<std::uint32_t>(second), 11) ^
                             rotated(std::bit_cast<std::uint32_t>(third), 22) ^
                             rotated(std::bit_cast<std::uint32_t>(fourth), 1);
  return word_term(key, word);
}

LOCKSTEP_HOST_DEVICE inline std::uint64_t fingerprint_term(std::uint32_t key, double value,
                                                           double second = 0, double third = 0,
                                                           double fourth = 0) {
  const std::uint64_t words = std::bit_cast<std::uint64_t>(value) ^
                              rotated(std::bit_cast<std::uint64_t>(second), 11) ^
                              rotated(std::bit_cast<std::uint64_t>(third), 22) ^
                              rotated(std::bit_cast<std::uint64_t>(fourth), 33);
  return word_term(key, static_cast<std::uint32_t>(words)) +
         word_term(key + key_step, static_cast<std::uint32_t>(words >> 32));
}

/// The bits of |x|, which are ordered as |x| is: those of infinity and of NaN are the largest. (The
/// largest of many integers is found faster than whether one of many numbers is not finite.)
LOCKSTEP_HOST_DEVICE inline std::uint32_t magnitude_bits(float x) {
  return std::bit_cast<std::uint32_t>(x) & 0x7fffffffu;
}
LOCKSTEP_HOST_DEVICE inline std::uint64_t magnitude_bits(double x) {
  return std::bit_cast<std::uint64_t>(x) & 0x7fffffffffffffffu;
}
LOCKSTEP_HOST_DEVICE inline bool is_finite_magnitude(std::uint32_t bits) {
  return bits < 0x7f800000u;
}
LOCKSTEP_HOST_DEVICE inline bool is_finite_magnitude(std::uint64_t bits) {
  return bits < 0x7ff0000000000000u;
}

/// A count of steps, as a word beside the elements.
LOCKSTEP_HOST_DEVICE inline std::uint64_t count_term(std::uint32_t salt, std::int64_t count) {
  return word_term(~salt, static_cast<std::uint32_t>(count));
}

}  // namespace lockstep::kernels
