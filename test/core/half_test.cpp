// The 16-bit types against the compiler's own (f16) and against the definition (bf16), for every
// pattern and around every tie.
#include "lockstep/core/half.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <initializer_list>
#include <limits>

namespace lockstep {
namespace {

#ifdef __FLT16_MAX__  // clang 14 has no _Float16 for x86
std::uint16_t bits_of(_Float16 value) { return std::bit_cast<std::uint16_t>(value); }
#endif

template <class T>
T of_bits(std::uint32_t bits) {
  T value;
  value.bits = static_cast<std::uint16_t>(bits);
  return value;
}

#ifdef __FLT16_MAX__
TEST_CASE("half: every pattern reads as the compiler reads it, and is written back as it was") {
  int differing = 0;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = static_cast<float>(of_bits<Half>(bits));
    const auto expected =
        static_cast<float>(std::bit_cast<_Float16>(static_cast<std::uint16_t>(bits)));
    if (std::isnan(expected))
      differing += !std::isnan(value) || !std::isnan(static_cast<float>(Half(value)));
    else
      differing += value != expected || Half(value).bits != bits;
  }
  CHECK(differing == 0);
}

TEST_CASE("half: floats between two halves round to the nearest, ties to even") {
  int differing = 0;
  for (std::uint32_t bits = 0; bits < 0x7c00; ++bits) {  // up to the step from 65504 to infinity
    const float low = static_cast<float>(of_bits<Half>(bits));
    const float high = bits == 0x7bff ? 65536.0f : static_cast<float>(of_bits<Half>(bits + 1));
    const float middle = low + (high - low) / 2;
    for (const float x : {std::nextafter(middle, 0.0f), middle, std::nextafter(middle, 1e9f)})
      for (const float sign : {1.0f, -1.0f})
        differing += Half(sign * x).bits != bits_of(static_cast<_Float16>(sign * x));
  }
  CHECK(differing == 0);
}
#endif

TEST_CASE("bfloat16: the upper half of a float, rounded to the nearest, ties to even") {
  int differing = 0;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = static_cast<float>(of_bits<BFloat16>(bits));
    differing += std::bit_cast<std::uint32_t>(value) != bits << 16;
    if (std::isnan(value)) {
      differing += !std::isnan(static_cast<float>(BFloat16(value)));
      continue;
    }
    if (std::isinf(value)) {
      differing += BFloat16(value).bits != bits;
      continue;
    }
    const std::uint32_t tie = (bits << 16) + 0x8000;
    const std::uint32_t even = bits + (bits & 1);
    differing += BFloat16(value).bits != bits;
    differing += BFloat16(std::bit_cast<float>(tie - 1)).bits != bits;
    differing += BFloat16(std::bit_cast<float>(tie)).bits != even;
    differing += BFloat16(std::bit_cast<float>(tie + 1)).bits != bits + 1;
  }
  CHECK(differing == 0);
  CHECK(std::isnan(static_cast<float>(BFloat16(std::numeric_limits<float>::quiet_NaN()))));
}

}  // namespace
}  // namespace lockstep
