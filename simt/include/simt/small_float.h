#pragma once
/// The 16-bit floating types of <cuda_fp16.h> and <cuda_bf16.h>: one template for both.
///
///                   sign  exponent  mantissa
///   __half            1       5        10      IEEE 754 binary16
///   __nv_bfloat16     1       8         7      the upper half of a float
///
/// Conversions round to the nearest, ties to even, once; subnormals are kept; NaN becomes 0x7fff,
/// as in CUDA. Arithmetic is done in float and rounded: for + - * / that is the correctly rounded
/// result, since 24 bits are at least twice 11 and two more (Figueroa 1995).

#include <bit>
#include <concepts>
#include <cstdint>

#include "vector_types.h"

namespace simt {

template <int exponent_bits, int mantissa_bits>
struct [[gnu::may_alias]] SmallFloat {
  std::uint16_t bits;

  SmallFloat() = default;
  constexpr SmallFloat(double value) : bits(round(value)) {}
  constexpr SmallFloat(float value) : bits(round(static_cast<double>(value))) {}
  template <std::integral Integer>
  constexpr SmallFloat(Integer value) : bits(round(static_cast<double>(value))) {}

  static constexpr SmallFloat of_bits(std::uint16_t bits) {
    SmallFloat made(0.0);
    made.bits = bits;
    return made;
  }

  constexpr operator float() const {
    const std::uint32_t sign = std::uint32_t{bits} >> 15 << 31;
    const std::uint32_t rest = bits & 0x7fffu;
    if (rest >= infinity)
      return std::bit_cast<float>(sign | 0x7f800000u | (rest - infinity) << (23 - mantissa_bits));
    if (rest >> mantissa_bits == 0) {  // zero, subnormal: in units of the smallest
      const float unit = std::bit_cast<float>(
          min_exponent - mantissa_bits >= -126
              ? static_cast<std::uint32_t>(min_exponent - mantissa_bits + 127) << 23
              : 1u << (min_exponent - mantissa_bits + 149));
      const float magnitude = static_cast<float>(rest) * unit;
      return sign ? -magnitude : magnitude;
    }
    constexpr int rebias = 127 - 1 + min_exponent;
    return std::bit_cast<float>(
        sign | ((rest << (23 - mantissa_bits)) + (static_cast<std::uint32_t>(rebias) << 23)));
  }

  friend constexpr SmallFloat operator+(SmallFloat a, SmallFloat b) {
    return static_cast<float>(a) + static_cast<float>(b);
  }
  friend constexpr SmallFloat operator-(SmallFloat a, SmallFloat b) {
    return static_cast<float>(a) - static_cast<float>(b);
  }
  friend constexpr SmallFloat operator*(SmallFloat a, SmallFloat b) {
    return static_cast<float>(a) * static_cast<float>(b);
  }
  friend constexpr SmallFloat operator/(SmallFloat a, SmallFloat b) {
    return static_cast<float>(a) / static_cast<float>(b);
  }
  friend constexpr SmallFloat operator-(SmallFloat a) {
    return of_bits(static_cast<std::uint16_t>(a.bits ^ 0x8000u));
  }
  constexpr SmallFloat& operator+=(SmallFloat other) { return *this = *this + other; }
  constexpr SmallFloat& operator-=(SmallFloat other) { return *this = *this - other; }
  constexpr SmallFloat& operator*=(SmallFloat other) { return *this = *this * other; }
  constexpr SmallFloat& operator/=(SmallFloat other) { return *this = *this / other; }
  friend constexpr bool operator==(SmallFloat a, SmallFloat b) {
    return static_cast<float>(a) == static_cast<float>(b);
  }
  friend constexpr bool operator<(SmallFloat a, SmallFloat b) {
    return static_cast<float>(a) < static_cast<float>(b);
  }
  friend constexpr bool operator>(SmallFloat a, SmallFloat b) { return b < a; }
  friend constexpr bool operator<=(SmallFloat a, SmallFloat b) {
    return static_cast<float>(a) <= static_cast<float>(b);
  }
  friend constexpr bool operator>=(SmallFloat a, SmallFloat b) { return b <= a; }

 private:
  static constexpr int min_exponent = 2 - (1 << (exponent_bits - 1));  ///< of normal numbers
  static constexpr std::uint32_t infinity = ((1u << exponent_bits) - 1) << mantissa_bits;

  static constexpr std::uint16_t round(double value) {
    const auto wide = std::bit_cast<std::uint64_t>(value);
    const auto sign = static_cast<std::uint32_t>(wide >> 63) << 15;
    const int biased = static_cast<int>(wide >> 52 & 0x7ff);
    const std::uint64_t fraction = wide & ((std::uint64_t{1} << 52) - 1);
    if (biased == 0x7ff) return static_cast<std::uint16_t>(fraction ? 0x7fffu : sign | infinity);
    // value = significand * 2^(exponent - 52); the result counts units of 2^(scale -
    // mantissa_bits).
    const std::uint64_t significand = fraction | (biased ? std::uint64_t{1} << 52 : 0);
    const int exponent = biased ? biased - 1023 : -1022;
    const int scale = exponent > min_exponent ? exponent : min_exponent;
    const int drop = 52 - mantissa_bits + scale - exponent;  // bits too fine for the result
    if (drop > 54) return static_cast<std::uint16_t>(sign);
    std::uint64_t units = significand >> drop;
    const std::uint64_t rest = significand - (units << drop);
    const std::uint64_t half = std::uint64_t{1} << (drop - 1);
    if (rest > half || (rest == half && (units & 1))) ++units;
    // The leading one of a normal number counts as one step of the exponent; so does a carry.
    const std::uint64_t result =
        (static_cast<std::uint64_t>(scale - min_exponent) << mantissa_bits) + units;
    return static_cast<std::uint16_t>(sign | (result < infinity ? result : infinity));
  }
};

/// Two of them in 32 bits, x in the lower half.
template <class T>
struct [[gnu::may_alias]] alignas(4) SmallFloatPair {
  T x, y;

  SmallFloatPair() = default;
  constexpr SmallFloatPair(T x_, T y_) : x(x_), y(y_) {}

  friend constexpr SmallFloatPair operator+(SmallFloatPair a, SmallFloatPair b) {
    return {a.x + b.x, a.y + b.y};
  }
  friend constexpr SmallFloatPair operator-(SmallFloatPair a, SmallFloatPair b) {
    return {a.x - b.x, a.y - b.y};
  }
  friend constexpr SmallFloatPair operator*(SmallFloatPair a, SmallFloatPair b) {
    return {a.x * b.x, a.y * b.y};
  }
};

}  // namespace simt
