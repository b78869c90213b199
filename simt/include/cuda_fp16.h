#pragma once
/// CUDA's half precision, as far as this project uses it: simt/small_float.h.

#include "simt/small_float.h"

using __half = simt::SmallFloat<5, 10>;
using half = __half;
using __half2 = simt::SmallFloatPair<__half>;
using half2 = __half2;

constexpr __half __float2half(float x) { return x; }
constexpr __half __float2half_rn(float x) { return x; }
constexpr __half __double2half(double x) { return x; }
constexpr float __half2float(__half x) { return x; }

constexpr __half2 __floats2half2_rn(float x, float y) { return {x, y}; }
constexpr __half2 __float22half2_rn(float2 x) { return {x.x, x.y}; }
constexpr __half2 __float2half2_rn(float x) { return {x, x}; }
constexpr __half2 __half2half2(__half x) { return {x, x}; }
constexpr __half2 __halves2half2(__half x, __half y) { return {x, y}; }
constexpr __half2 make_half2(__half x, __half y) { return {x, y}; }
constexpr float2 __half22float2(__half2 x) { return {x.x, x.y}; }
constexpr __half __low2half(__half2 x) { return x.x; }
constexpr __half __high2half(__half2 x) { return x.y; }
constexpr float __low2float(__half2 x) { return x.x; }
constexpr float __high2float(__half2 x) { return x.y; }

constexpr unsigned short __half_as_ushort(__half x) { return x.bits; }
constexpr __half __ushort_as_half(unsigned short bits) { return __half::of_bits(bits); }

constexpr __half __hadd(__half a, __half b) { return a + b; }
constexpr __half __hsub(__half a, __half b) { return a - b; }
constexpr __half __hmul(__half a, __half b) { return a * b; }
constexpr __half __hdiv(__half a, __half b) { return a / b; }
constexpr __half __hneg(__half x) { return -x; }
constexpr bool __hisnan(__half x) { return (x.bits & 0x7fff) > 0x7c00; }
constexpr __half2 __hadd2(__half2 a, __half2 b) { return a + b; }
constexpr __half2 __hmul2(__half2 a, __half2 b) { return a * b; }
