/// cuda_fp16.h and cuda_bf16.h. Expected: the formats' definitions, evaluated in double.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

namespace {

/// The value of a bit pattern, by the definition of IEEE 754, 3.4.
double value_of(unsigned bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(bits >> mantissa_bits & ((1u << exponent_bits) - 1));
  const double fraction = std::ldexp(bits & ((1u << mantissa_bits) - 1), -mantissa_bits);
  const double sign = bits >> 15 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1)
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  return exponent == 0 ? sign * std::ldexp(fraction, 1 - bias)
                       : sign * std::ldexp(1 + fraction, exponent - bias);
}

template <class T>
struct Format;
template <>
struct Format<__half> {
  static constexpr int exponent = 5, mantissa = 10;
};
template <>
struct Format<__nv_bfloat16> {
  static constexpr int exponent = 8, mantissa = 7;
};

TEST_CASE_TEMPLATE("every 16-bit pattern there and back", T, __half, __nv_bfloat16) {
  constexpr int exponent = Format<T>::exponent, mantissa = Format<T>::mantissa;
  int wrong = 0;
  for (unsigned bits = 0; bits < 65536; ++bits) {
    const T x = T::of_bits(static_cast<std::uint16_t>(bits));
    const double expected = value_of(bits, exponent, mantissa);
    const float as_float = x;
    if (std::isnan(expected))
      wrong += !std::isnan(as_float) || T(as_float).bits != 0x7fff || !__hisnan(x);
    else
      wrong += as_float != static_cast<float>(expected) || std::signbit(as_float) != (bits >> 15) ||
               T(as_float).bits != bits || T(expected).bits != bits || __hisnan(x);
  }
  CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("between two neighbours: the nearer one, the even one in the middle", T, __half,
                   __nv_bfloat16) {
  int wrong = 0;
  constexpr unsigned infinity = ((1u << Format<T>::exponent) - 1) << Format<T>::mantissa;
  for (unsigned bits = 0; bits < infinity; ++bits) {
    const double low = value_of(bits, Format<T>::exponent, Format<T>::mantissa);
    // Beyond the largest number, the next would be where infinity stands.
    const double high = bits + 1 < infinity
                            ? value_of(bits + 1, Format<T>::exponent, Format<T>::mantissa)
                            : std::ldexp(1.0, 1 << (Format<T>::exponent - 1));
    const double middle = low + (high - low) / 2;
    const double tiny = (high - low) / 1024;
    const unsigned even = bits % 2 ? bits + 1 : bits;
    wrong += T(middle).bits != even || T(-middle).bits != (even | 0x8000u);
    wrong += T(middle - tiny).bits != bits || T(middle + tiny).bits != bits + 1;
    wrong += T(static_cast<float>(middle)).bits != even;  // exact in a float, except far below
  }
  CHECK(wrong == 0);
}

TEST_CASE("a double is rounded once") {
  // Just above the middle of 1 and the next half: in float it would be the middle itself.
  const double middle = 1 + std::ldexp(1.0, -11);
  CHECK(__double2half(middle + std::ldexp(1.0, -40)).bits == 0x3c01);
  CHECK(__double2half(middle).bits == 0x3c00);
  CHECK(__double2half(1e300).bits == 0x7c00);
  CHECK(__double2bfloat16(-1e-300).bits == 0x8000);
}

TEST_CASE("pairs and names") {
  const float2 both = __half22float2(__float22half2_rn(make_float2(1.5f, -65504.0f)));
  CHECK(both.x == 1.5f);
  CHECK(both.y == -65504.0f);
  CHECK(__half2float(__float2half(65520.0f)) == std::numeric_limits<float>::infinity());
  const __nv_bfloat162 pair = __floats2bfloat162_rn(1.0f, 3.140625f);
  CHECK(__bfloat162float(__high2bfloat16(pair)) == 3.140625f);
  static_assert(sizeof(__half2) == 4 && alignof(__nv_bfloat162) == 4 && sizeof(__half) == 2);
  CHECK(static_cast<float>(__half(1.0f) + __half(0.00048828125f)) == 1.0f);  // half a step: to even
  CHECK(static_cast<float>(__half(2048.0f) + __half(1.0f)) == 2048.0f);
}

}  // namespace
