#pragma once
/// The two 16-bit floating types as they lie in memory, for code that any compiler compiles:
///
///            sign  exponent  mantissa   largest      spacing at 1
///   Half       1       5        10      65504        2^-10         (IEEE 754 binary16)
///   BFloat16   1       8         7      3.4e38       2^-7          (the upper half of a float)
///
/// They are storage: nothing is computed in them. Conversions from float round to the nearest, ties
/// to even; NaN stays NaN. On a GPU the same bits are CUDA's __half and __nv_bfloat16.

#include <bit>
#include <cstdint>

namespace lockstep {

struct BFloat16 {
  std::uint16_t bits;

  BFloat16() = default;
  constexpr explicit BFloat16(float value) : bits(round(std::bit_cast<std::uint32_t>(value))) {}
  constexpr explicit BFloat16(double value) : BFloat16(static_cast<float>(value)) {}
  constexpr explicit operator float() const {
    return std::bit_cast<float>(std::uint32_t{bits} << 16);
  }
  constexpr explicit operator double() const { return static_cast<float>(*this); }

 private:
  static constexpr std::uint16_t round(std::uint32_t x) {
    if ((x & 0x7fffffffu) > 0x7f800000u) return 0x7fff;  // NaN: rounding could carry into infinity
    const std::uint32_t half_less = 0x7fffu + (x >> 16 & 1u);  // ties go to the even neighbour
    return static_cast<std::uint16_t>((x + half_less) >> 16);
  }
};

struct Half {
  std::uint16_t bits;

  Half() = default;
  constexpr explicit Half(float value) : bits(round(std::bit_cast<std::uint32_t>(value))) {}
  constexpr explicit Half(double value) : Half(static_cast<float>(value)) {}
  constexpr explicit operator float() const {
    const std::uint32_t sign = std::uint32_t{bits & 0x8000u} << 16;
    const std::uint32_t rest = bits & 0x7fffu;
    if (rest >= 0x7c00u)  // infinity, NaN
      return std::bit_cast<float>(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    if (rest < 0x400u) {  // zero, subnormal: rest * 2^-24, exact in a float
      const float magnitude = static_cast<float>(rest) * 0x1p-24f;
      return sign ? -magnitude : magnitude;
    }
    return std::bit_cast<float>(sign | ((rest << 13) + (std::uint32_t{127 - 15} << 23)));
  }
  constexpr explicit operator double() const { return static_cast<float>(*this); }

 private:
  static constexpr std::uint16_t round(std::uint32_t x) {
    const auto sign = static_cast<std::uint16_t>(x >> 16 & 0x8000u);
    const std::uint32_t magnitude = x & 0x7fffffffu;
    const auto with_sign = [sign](std::uint32_t rest) {
      return static_cast<std::uint16_t>(sign | rest);
    };
    if (magnitude > 0x7f800000u) return with_sign(0x7fff);
    if (magnitude >= 0x477ff000u) return with_sign(0x7c00);  // 65520 and beyond: infinity
    if (magnitude < 0x38800000u) {                           // below 2^-14: subnormal
      // Adding 0.5 aligns the last bit kept with the last bit of the float, which then rounds.
      const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
      return with_sign(std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u);
    }
    const std::uint32_t rebased = magnitude - (std::uint32_t{127 - 15} << 23);
    return with_sign((rebased + 0xfffu + (rebased >> 13 & 1u)) >> 13);
  }
};

}  // namespace lockstep
