#pragma once
/// CUDA's bfloat16, as far as this project uses it: simt/small_float.h.

#include "simt/small_float.h"

using __nv_bfloat16 = simt::SmallFloat<8, 7>;
using nv_bfloat16 = __nv_bfloat16;
using __nv_bfloat162 = simt::SmallFloatPair<__nv_bfloat16>;
using nv_bfloat162 = __nv_bfloat162;

constexpr __nv_bfloat16 __float2bfloat16(float x) { return x; }
constexpr __nv_bfloat16 __float2bfloat16_rn(float x) { return x; }
constexpr __nv_bfloat16 __double2bfloat16(double x) { return x; }
constexpr float __bfloat162float(__nv_bfloat16 x) { return x; }

constexpr __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {x, y}; }
constexpr __nv_bfloat162 __float22bfloat162_rn(float2 x) { return {x.x, x.y}; }
constexpr __nv_bfloat162 __float2bfloat162_rn(float x) { return {x, x}; }
constexpr __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 x) { return {x, x}; }
constexpr __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
constexpr __nv_bfloat162 make_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
constexpr float2 __bfloat1622float2(__nv_bfloat162 x) { return {x.x, x.y}; }
constexpr __nv_bfloat16 __low2bfloat16(__nv_bfloat162 x) { return x.x; }
constexpr __nv_bfloat16 __high2bfloat16(__nv_bfloat162 x) { return x.y; }
constexpr float __low2float(__nv_bfloat162 x) { return x.x; }
constexpr float __high2float(__nv_bfloat162 x) { return x.y; }

constexpr unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
constexpr __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) {
  return __nv_bfloat16::of_bits(bits);
}

constexpr __nv_bfloat16 __hadd(__nv_bfloat16 a, __nv_bfloat16 b) { return a + b; }
constexpr __nv_bfloat16 __hsub(__nv_bfloat16 a, __nv_bfloat16 b) { return a - b; }
constexpr __nv_bfloat16 __hmul(__nv_bfloat16 a, __nv_bfloat16 b) { return a * b; }
constexpr __nv_bfloat16 __hdiv(__nv_bfloat16 a, __nv_bfloat16 b) { return a / b; }
constexpr __nv_bfloat16 __hneg(__nv_bfloat16 x) { return -x; }
constexpr bool __hisnan(__nv_bfloat16 x) { return (x.bits & 0x7fff) > 0x7f80; }
constexpr __nv_bfloat162 __hadd2(__nv_bfloat162 a, __nv_bfloat162 b) { return a + b; }
constexpr __nv_bfloat162 __hmul2(__nv_bfloat162 a, __nv_bfloat162 b) { return a * b; }
