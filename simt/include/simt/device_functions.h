#pragma once
/// CUDA's device functions on numbers, bits and memory, as far as this project uses them. Functions
/// of <cmath> are there under their C names. Fast approximations (__expf) are exact ones here: a
/// result may differ from a GPU's within the errors that the Programming Guide gives for them.

#include <math.h>

#include <bit>
#include <climits>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "language.h"

// ---- minimum and maximum ------------------------------------------------------------------------

inline int min(int a, int b) { return a < b ? a : b; }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline long min(long a, long b) { return a < b ? a : b; }
inline unsigned long min(unsigned long a, unsigned long b) { return a < b ? a : b; }
inline long long min(long long a, long long b) { return a < b ? a : b; }
inline unsigned long long min(unsigned long long a, unsigned long long b) { return a < b ? a : b; }
inline float min(float a, float b) { return fminf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline int max(int a, int b) { return a < b ? b : a; }
inline unsigned max(unsigned a, unsigned b) { return a < b ? b : a; }
inline long max(long a, long b) { return a < b ? b : a; }
inline unsigned long max(unsigned long a, unsigned long b) { return a < b ? b : a; }
inline long long max(long long a, long long b) { return a < b ? b : a; }
inline unsigned long long max(unsigned long long a, unsigned long long b) { return a < b ? b : a; }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double max(double a, double b) { return fmax(a, b); }

// ---- bits ---------------------------------------------------------------------------------------

inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
/// 1 + the index of the lowest bit that is set; 0 for 0.
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
  unsigned reversed = 0;
  for (int bit = 0; bit < 32; ++bit) reversed |= (x >> bit & 1u) << (31 - bit);
  return reversed;
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<std::uint64_t>(a) * b >> 32);
}
inline int __mulhi(int a, int b) {
  return static_cast<int>(static_cast<std::int64_t>(a) * b >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<unsigned long long>(static_cast<Wide>(a) * b >> 64);
}

inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }

// ---- arithmetic with a named rounding -----------------------------------------------------------

// Separate statements: never contracted into a fused multiply-add, whatever the compiler's options.
inline float __fadd_rn(float a, float b) {
  float sum = a + b;
  asm("" : "+r"(sum));
  return sum;
}
inline float __fsub_rn(float a, float b) { return __fadd_rn(a, -b); }
inline float __fmul_rn(float a, float b) {
  float product = a * b;
  asm("" : "+r"(product));
  return product;
}
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __dadd_rn(double a, double b) {
  double sum = a + b;
  asm("" : "+r"(sum));
  return sum;
}
inline double __dmul_rn(double a, double b) {
  double product = a * b;
  asm("" : "+r"(product));
  return product;
}
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }

inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
inline float __double2float_rn(double x) { return static_cast<float>(x); }
inline int __float2int_rn(float x) { return static_cast<int>(nearbyintf(x)); }
inline int __float2int_rz(float x) { return static_cast<int>(x); }
inline int __float2int_rd(float x) { return static_cast<int>(floorf(x)); }

// ---- fast and special functions -----------------------------------------------------------------

inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return powf(10.0f, x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline void __sincosf(float x, float* sine, float* cosine) {
  *sine = sinf(x);
  *cosine = cosf(x);
}
inline float __fdividef(float a, float b) { return a / b; }
inline float __saturatef(float x) { return x > 0.0f ? fminf(x, 1.0f) : 0.0f; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float rsqrt(float x) { return rsqrtf(x); }
inline void sincospif(float x, float* sine, float* cosine) {
  *sine = static_cast<float>(sin(M_PI * static_cast<double>(x)));
  *cosine = static_cast<float>(cos(M_PI * static_cast<double>(x)));
}
inline float normcdff(float x) { return 0.5f * erfcf(-x * static_cast<float>(M_SQRT1_2)); }

// ---- memory accesses with a caching hint --------------------------------------------------------

template <class T>
__forceinline__ T __ldg(const T* address) {
  return *address;
}
template <class T>
__forceinline__ T __ldcs(const T* address) {
  return *address;
}
template <class T>
__forceinline__ T __ldcg(const T* address) {
  return *address;
}
template <class T>
__forceinline__ void __stcs(T* address, std::type_identity_t<T> value) {
  *address = value;
}
template <class T>
__forceinline__ void __stcg(T* address, std::type_identity_t<T> value) {
  *address = value;
}
