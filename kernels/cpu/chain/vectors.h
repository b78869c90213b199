#pragma once
/// Vectors of f32 and f64, one type for each instruction set that the compiler may use here. What
/// is computed through them has the same bits with each: an element of a vector takes the same
/// fused multiply-adds as a number does with Scalar.

#if defined(__AVX2__) && defined(__FMA__)
#define LOCKSTEP_CHAIN_AVX2
#endif
#ifdef __AVX512F__
#define LOCKSTEP_CHAIN_AVX512
#endif
#if defined(LOCKSTEP_CHAIN_AVX2) || defined(LOCKSTEP_CHAIN_AVX512)
#include <immintrin.h>
#endif

#include <cmath>
#include <utility>

/// For functions whose arrays of vectors must stay in registers.
#define LOCKSTEP_INLINE inline __attribute__((always_inline))

namespace lockstep::kernels::chain {

/// f(0), f(1), ..., f(n - 1), whose arguments are constants: every array index is one.
template <int n, class F>
LOCKSTEP_INLINE void unroll(F&& f) {
  [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
    (f(std::integral_constant<int, i>{}), ...);
  }
  (std::make_integer_sequence<int, n>{});
}

// Each type has
//   Element         float or double
//   width           elements of a vector
//   rows, vectors   the largest tile of C that stays in registers, `vectors` vectors in each row
//   load_first      the first n elements, the others +0; n in [0, width]
//   store_first     stores those alone
//   transpose       of a square of `width` vectors

template <class T>
struct Scalar {
  using Element = T;
  using Vector = T;
  static constexpr int width = 1, rows = 4, vectors = 2;
  static Vector zero() { return 0; }
  static Vector broadcast(const T* x) { return *x; }
  static Vector load(const T* x) { return *x; }
  static Vector load_first(const T* x, int n) { return n > 0 ? *x : 0; }
  static void store(T* to, Vector x) { *to = x; }
  static void store_first(T* to, int n, Vector x) {
    if (n > 0) *to = x;
  }
  static Vector multiply_add(Vector a, Vector b, Vector c) { return std::fma(a, b, c); }
  static Vector add(Vector a, Vector b) { return a + b; }
  static void transpose(Vector (&)[width]) {}
};

#ifdef LOCKSTEP_CHAIN_AVX2
template <class T>
struct Avx2;

template <>
struct Avx2<float> {
  using Element = float;
  using Vector = __m256;
  static constexpr int width = 8, rows = 6, vectors = 2;
  static Vector zero() { return _mm256_setzero_ps(); }
  static Vector broadcast(const float* x) { return _mm256_broadcast_ss(x); }
  static Vector load(const float* x) { return _mm256_loadu_ps(x); }
  static Vector load_first(const float* x, int n) {
    const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_maskload_ps(x, _mm256_cmpgt_epi32(_mm256_set1_epi32(n), index));
  }
  static void store(float* to, Vector x) { _mm256_storeu_ps(to, x); }
  // By halves: a masked store is slow on AMD's processors.
  static void store_first(float* to, int n, Vector x) {
    if (n == width) return store(to, x);
    __m128 part = _mm256_castps256_ps128(x);
    if (n & 4) {
      _mm_storeu_ps(to, part);
      part = _mm256_extractf128_ps(x, 1);
      to += 4;
    }
    if (n & 2) {
      _mm_storel_pi(reinterpret_cast<__m64*>(to), part);
      part = _mm_movehl_ps(part, part);
      to += 2;
    }
    if (n & 1) _mm_store_ss(to, part);
  }
  static Vector multiply_add(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
  static Vector add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
  LOCKSTEP_INLINE static void transpose(Vector (&x)[width]) {
    Vector y[width];  // y[4 g + c]: columns c and 4 + c of the rows 4 g .. 4 g + 3
    unroll<2>([&](auto group) __attribute__((always_inline)) {
      constexpr int g = 4 * group;
      const Vector a = _mm256_unpacklo_ps(x[g], x[g + 1]), b = _mm256_unpackhi_ps(x[g], x[g + 1]);
      const Vector c = _mm256_unpacklo_ps(x[g + 2], x[g + 3]);
      const Vector d = _mm256_unpackhi_ps(x[g + 2], x[g + 3]);
      y[g] = _mm256_shuffle_ps(a, c, 0x44);
      y[g + 1] = _mm256_shuffle_ps(a, c, 0xee);
      y[g + 2] = _mm256_shuffle_ps(b, d, 0x44);
      y[g + 3] = _mm256_shuffle_ps(b, d, 0xee);
    });
    unroll<4>([&](auto c) __attribute__((always_inline)) {
      x[c] = _mm256_permute2f128_ps(y[c], y[4 + c], 0x20);
      x[4 + c] = _mm256_permute2f128_ps(y[c], y[4 + c], 0x31);
    });
  }
};

template <>
struct Avx2<double> {
  using Element = double;
  using Vector = __m256d;
  static constexpr int width = 4, rows = 6, vectors = 2;
  static Vector zero() { return _mm256_setzero_pd(); }
  static Vector broadcast(const double* x) { return _mm256_broadcast_sd(x); }
  static Vector load(const double* x) { return _mm256_loadu_pd(x); }
  static Vector load_first(const double* x, int n) {
    const __m256i index = _mm256_setr_epi64x(0, 1, 2, 3);
    return _mm256_maskload_pd(x, _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), index));
  }
  static void store(double* to, Vector x) { _mm256_storeu_pd(to, x); }
  static void store_first(double* to, int n, Vector x) {
    if (n == width) return store(to, x);
    __m128d part = _mm256_castpd256_pd128(x);
    if (n & 2) {
      _mm_storeu_pd(to, part);
      part = _mm256_extractf128_pd(x, 1);
      to += 2;
    }
    if (n & 1) _mm_store_sd(to, part);
  }
  static Vector multiply_add(Vector a, Vector b, Vector c) { return _mm256_fmadd_pd(a, b, c); }
  static Vector add(Vector a, Vector b) { return _mm256_add_pd(a, b); }
  LOCKSTEP_INLINE static void transpose(Vector (&x)[width]) {
    const Vector a = _mm256_unpacklo_pd(x[0], x[1]), b = _mm256_unpackhi_pd(x[0], x[1]);
    const Vector c = _mm256_unpacklo_pd(x[2], x[3]), d = _mm256_unpackhi_pd(x[2], x[3]);
    x[0] = _mm256_permute2f128_pd(a, c, 0x20);
    x[1] = _mm256_permute2f128_pd(b, d, 0x20);
    x[2] = _mm256_permute2f128_pd(a, c, 0x31);
    x[3] = _mm256_permute2f128_pd(b, d, 0x31);
  }
};
#endif

#ifdef LOCKSTEP_CHAIN_AVX512
template <class T>
struct Avx512;

template <>
struct Avx512<float> {
  using Element = float;
  using Vector = __m512;
  static constexpr int width = 16, rows = 14, vectors = 2;
  static __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1); }
  static Vector zero() { return _mm512_setzero_ps(); }
  static Vector broadcast(const float* x) { return _mm512_set1_ps(*x); }
  static Vector load(const float* x) { return _mm512_loadu_ps(x); }
  static Vector load_first(const float* x, int n) { return _mm512_maskz_loadu_ps(first(n), x); }
  static void store(float* to, Vector x) { _mm512_storeu_ps(to, x); }
  static void store_first(float* to, int n, Vector x) { _mm512_mask_storeu_ps(to, first(n), x); }
  static Vector multiply_add(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
  static Vector add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
  LOCKSTEP_INLINE static void transpose(Vector (&x)[width]) {
    Vector y[width];  // y[4 g + c]: columns c, 4 + c, 8 + c and 12 + c of the rows 4 g .. 4 g + 3
    unroll<4>([&](auto group) __attribute__((always_inline)) {
      constexpr int g = 4 * group;
      const Vector a = _mm512_unpacklo_ps(x[g], x[g + 1]), b = _mm512_unpackhi_ps(x[g], x[g + 1]);
      const Vector c = _mm512_unpacklo_ps(x[g + 2], x[g + 3]);
      const Vector d = _mm512_unpackhi_ps(x[g + 2], x[g + 3]);
      y[g] = _mm512_shuffle_ps(a, c, 0x44);
      y[g + 1] = _mm512_shuffle_ps(a, c, 0xee);
      y[g + 2] = _mm512_shuffle_ps(b, d, 0x44);
      y[g + 3] = _mm512_shuffle_ps(b, d, 0xee);
    });
    unroll<4>([&](auto c) __attribute__((always_inline)) {
      const Vector even_low = _mm512_shuffle_f32x4(y[c], y[4 + c], 0x88);
      const Vector odd_low = _mm512_shuffle_f32x4(y[c], y[4 + c], 0xdd);
      const Vector even_high = _mm512_shuffle_f32x4(y[8 + c], y[12 + c], 0x88);
      const Vector odd_high = _mm512_shuffle_f32x4(y[8 + c], y[12 + c], 0xdd);
      x[c] = _mm512_shuffle_f32x4(even_low, even_high, 0x88);
      x[4 + c] = _mm512_shuffle_f32x4(odd_low, odd_high, 0x88);
      x[8 + c] = _mm512_shuffle_f32x4(even_low, even_high, 0xdd);
      x[12 + c] = _mm512_shuffle_f32x4(odd_low, odd_high, 0xdd);
    });
  }
};

template <>
struct Avx512<double> {
  using Element = double;
  using Vector = __m512d;
  static constexpr int width = 8, rows = 14, vectors = 2;
  static __mmask8 first(int n) { return static_cast<__mmask8>((1u << n) - 1); }
  static Vector zero() { return _mm512_setzero_pd(); }
  static Vector broadcast(const double* x) { return _mm512_set1_pd(*x); }
  static Vector load(const double* x) { return _mm512_loadu_pd(x); }
  static Vector load_first(const double* x, int n) { return _mm512_maskz_loadu_pd(first(n), x); }
  static void store(double* to, Vector x) { _mm512_storeu_pd(to, x); }
  static void store_first(double* to, int n, Vector x) { _mm512_mask_storeu_pd(to, first(n), x); }
  static Vector multiply_add(Vector a, Vector b, Vector c) { return _mm512_fmadd_pd(a, b, c); }
  static Vector add(Vector a, Vector b) { return _mm512_add_pd(a, b); }
  LOCKSTEP_INLINE static void transpose(Vector (&x)[width]) {
    Vector y[width];  // y[4 c + g]: columns c, 2 + c, 4 + c and 6 + c of the rows 2 g, 2 g + 1
    unroll<4>([&](auto g) __attribute__((always_inline)) {
      y[g] = _mm512_unpacklo_pd(x[2 * g], x[2 * g + 1]);
      y[4 + g] = _mm512_unpackhi_pd(x[2 * g], x[2 * g + 1]);
    });
    unroll<2>([&](auto c) __attribute__((always_inline)) {
      const Vector even_low = _mm512_shuffle_f64x2(y[4 * c], y[4 * c + 1], 0x88);
      const Vector odd_low = _mm512_shuffle_f64x2(y[4 * c], y[4 * c + 1], 0xdd);
      const Vector even_high = _mm512_shuffle_f64x2(y[4 * c + 2], y[4 * c + 3], 0x88);
      const Vector odd_high = _mm512_shuffle_f64x2(y[4 * c + 2], y[4 * c + 3], 0xdd);
      x[c] = _mm512_shuffle_f64x2(even_low, even_high, 0x88);
      x[2 + c] = _mm512_shuffle_f64x2(odd_low, odd_high, 0x88);
      x[4 + c] = _mm512_shuffle_f64x2(even_low, even_high, 0xdd);
      x[6 + c] = _mm512_shuffle_f64x2(odd_low, odd_high, 0xdd);
    });
  }
};
#endif

#ifdef LOCKSTEP_CHAIN_AVX512
template <class T>
using Widest = Avx512<T>;
#elif defined(LOCKSTEP_CHAIN_AVX2)
template <class T>
using Widest = Avx2<T>;
#else
template <class T>
using Widest = Scalar<T>;
#endif

}  // namespace lockstep::kernels::chain
