#pragma once
/// exp, log and their relatives, for f32 and f64, on every device: what functors.h is made of.
///
/// They are written for loops that a compiler vectorizes: no branches, no tables, no calls, but
/// additions, multiplications, divisions, shifts of bits, and choices. Each of these is rounded as
/// IEEE 754 says, in a vector of any width and in a single number alike. So the bits of a result
/// depend on the operand alone, and are the same with AVX2 and with AVX-512. (A machine without
/// fused multiply-adds has its own bits.)
///
/// The methods: an operand is reduced to a small interval around 0 (W. Cody and W. Waite, "Software
/// manual for the elementary functions", 1980), where a polynomial with the least largest error is
/// evaluated. Its coefficients come from E. Remez's exchange algorithm (tools/minimax.py), rounded.
/// What is rounded before the last addition is small beside the result. docs/precision.md says how
/// far each function is from the truth.

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "lockstep/core/compiler.h"

namespace lockstep::kernels::elementary {

/// Whether a multiplication and an addition are one instruction.
#if defined(__FMA__) || defined(__CUDA_ARCH__) || defined(__aarch64__)
inline constexpr bool fused = true;
#else
inline constexpr bool fused = false;
#endif

/// How numbers of T are stored.
template <class T>
struct Format {
  using Bits = std::uint32_t;
  static constexpr int fraction_bits = 23;
  static constexpr Bits bias = 127;
  static constexpr T round_to_integer = 12582912;  // 1.5 * 2^23: added, it leaves no fraction bit
  static constexpr T two_to_fraction_bits = 8388608;
  static constexpr T ln2_high = 0x1.62e4p-1f, ln2_low = 0x1.7f7d1cp-20f;  // high: 15 bits
};
template <>
struct Format<double> {
  using Bits = std::uint64_t;
  static constexpr int fraction_bits = 52;
  static constexpr Bits bias = 1023;
  static constexpr double round_to_integer = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr double two_to_fraction_bits = 4503599627370496.0;
  static constexpr double ln2_high = 0x1.62e42feep-1, ln2_low = 0x1.a39ef35793c76p-33;  // 32 bits
};
template <class T>
using Bits = typename Format<T>::Bits;

template <class T>
inline constexpr T infinity = std::numeric_limits<T>::infinity();

template <class T>
LOCKSTEP_HOST_DEVICE inline Bits<T> bits_of(T x) {
  return std::bit_cast<Bits<T>>(x);
}
template <class T>
LOCKSTEP_HOST_DEVICE inline T of_bits(Bits<T> bits) {
  return std::bit_cast<T>(bits);
}
/// 2^(exponent - bias), for 0 < exponent < 2 bias + 1.
template <class T>
LOCKSTEP_HOST_DEVICE inline T power_of_two(Bits<T> exponent) {
  return of_bits<T>(exponent << Format<T>::fraction_bits);
}

/// a b + c, rounded once where there is an instruction for it, else twice.
template <class T>
LOCKSTEP_HOST_DEVICE inline T multiply_add(T a, T b, T c) {
  return fused ? std::fma(a, b, c) : a * b + c;
}

/// What rounding took from the product: a b - product, exactly.
template <class T>
LOCKSTEP_HOST_DEVICE inline T lost_in_product(T a, T b, T product) {
  if (fused) return std::fma(a, b, -product);
  // T. Dekker, "A floating-point technique for extending the available precision", 1971
  const Bits<T> upper_half = ~Bits<T>{0} << ((Format<T>::fraction_bits + 2) / 2);
  const T a_high = of_bits<T>(bits_of(a) & upper_half), a_low = a - a_high;
  const T b_high = of_bits<T>(bits_of(b) & upper_half), b_low = b - b_high;
  return ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low;
}

/// The polynomial in x with these coefficients, that of the highest power first.
template <class T>
LOCKSTEP_HOST_DEVICE inline T polynomial(T, T coefficient) {
  return coefficient;
}
template <class T, class... Rest>
LOCKSTEP_HOST_DEVICE inline T polynomial(T x, T high, T next, Rest... rest) {
  return polynomial(x, multiply_add(high, x, next), rest...);
}

/// The same, an even number of coefficients, as one polynomial in x^2 of every other coefficient
/// and one of the rest: as many steps, but half as many that wait for each other.
template <class T>
LOCKSTEP_HOST_DEVICE inline T long_polynomial(T x, T, T odd, T even) {
  return multiply_add(odd, x, even);
}
template <class T, class... Rest>
LOCKSTEP_HOST_DEVICE inline T long_polynomial(T x, T square, T odd, T even, T next_odd, T next_even,
                                              Rest... rest) {
  return long_polynomial(x, square, multiply_add(odd, square, next_odd),
                         multiply_add(even, square, next_even), rest...);
}

/// a if the condition holds, else b. Made of bits: of branches a compiler may make loops that it
/// does not vectorize, or that choose many times.
template <class T>
LOCKSTEP_HOST_DEVICE inline T choose(bool condition, T a, T b) {
  const Bits<T> mask = -Bits<T>{condition};
  return of_bits<T>((bits_of(a) & mask) | (bits_of(b) & ~mask));
}

/// x, or the end of [low, high] beyond which it lies. NaN passes.
template <class T>
LOCKSTEP_HOST_DEVICE inline T clamped(T x, T low, T high) {
  const T at_most_high = choose(x > high, high, x);
  return choose(at_most_high < low, low, at_most_high);
}
template <class T>
LOCKSTEP_HOST_DEVICE inline T magnitude(T x) {
  return of_bits<T>(bits_of(x) & (~Bits<T>{0} >> 1));
}
/// The smaller of two numbers that are not negative; of NaN, the limit.
template <class T>
LOCKSTEP_HOST_DEVICE inline T at_most(T limit, T size) {
  return of_bits<T>(bits_of(size) < bits_of(limit) ? bits_of(size) : bits_of(limit));
}
/// `size`, which is not negative, with the sign of x.
template <class T>
LOCKSTEP_HOST_DEVICE inline T with_sign_of(T x, T size) {
  return of_bits<T>(bits_of(size) | (bits_of(x) & ~(~Bits<T>{0} >> 1)));
}

// Exponentials.

/// e^x = (1 + fraction) 2^n, with a fraction between -0.3 and 0.42.
template <class T>
struct Exponential {
  T fraction;
  Bits<T> twice_biased;  ///< n + 2 bias

  /// y 2^n, in two steps: 2^n itself may be too large or too small. A subnormal result is rounded
  /// by the second step.
  LOCKSTEP_HOST_DEVICE T scale(T y) const {
    const Bits<T> half = twice_biased >> 1;
    return y * power_of_two<T>(half) * power_of_two<T>(twice_biased - half);
  }
  /// y / (1 + e^x) = (y A / (A B + 1 + fraction)) B with A B = 2^-n: y has its say before the last
  /// factor makes the result small.
  LOCKSTEP_HOST_DEVICE T divide_by_one_more(T y) const {
    const Bits<T> whole = 4 * Format<T>::bias - twice_biased, half = whole >> 1;
    const T a = power_of_two<T>(half), b = power_of_two<T>(whole - half);
    const T sum = a * b + 1, lost = a * b - (sum - 1);
    return (y * a) / (sum + (fraction + lost)) * b;
  }
};

/// (e^r - 1 - r) / r^2 for |r| <= log(2) / 2.
LOCKSTEP_HOST_DEVICE inline float exp_series(float r) {
  return polynomial(r, 0.0013950524f, 0.008368908f, 0.041666206f, 0.16666518f, 0.5f);
}
LOCKSTEP_HOST_DEVICE inline double exp_series(double r) {
  return polynomial(r, 2.511789392096967e-08, 2.763131948887935e-07, 2.7557216198537185e-06,
                    2.480148983908208e-05, 0.00019841269917495035, 0.0013888888947108393,
                    0.008333333333307156, 0.0416666666665151, 0.166666666666667,
                    0.5000000000000013);
}

/// x + low = n log(2) + high + rest with |high| <= log(2) / 2 and a little: for an x between -1.4
/// and 1 times the logarithm of the largest number, and |low| <= 1/16.
template <class T>
struct Reduced {
  T high, rest;
  Bits<T> twice_biased;  ///< n + 2 bias

  LOCKSTEP_HOST_DEVICE explicit Reduced(T x, T low = 0) {
    using F = Format<T>;
    const T shifted = multiply_add(x, T(1.44269504088896340736), F::round_to_integer);
    const T n = shifted - F::round_to_integer;
    const T exact = multiply_add(n, -F::ln2_high, x), less = multiply_add(n, F::ln2_low, -low);
    high = exact - less;
    rest = (exact - high) - less;
    twice_biased = bits_of(shifted) - (bits_of(F::round_to_integer) - 2 * F::bias);
  }
};

/// e^(x + low), where Reduced takes them.
template <class T>
LOCKSTEP_HOST_DEVICE inline Exponential<T> exponential(T x, T low = 0) {
  const Reduced<T> r(x, low);
  return {multiply_add(r.high * r.high, exp_series(r.high), r.rest) + r.high, r.twice_biased};
}

template <class T>
inline constexpr bool is_single = sizeof(T) == 4;

/// e^x.
template <class T>
LOCKSTEP_HOST_DEVICE inline T exp(T x) {
  const auto e = exponential(clamped<T>(x, is_single<T> ? -104 : -746, is_single<T> ? 89 : 710));
  return e.scale(1 + e.fraction);
}

/// e^x - 1 = 2 ((2^(n-1) - 1/2) + 2^(n-1) (e^r - 1)); the sum of the large parts is exact.
template <class T>
LOCKSTEP_HOST_DEVICE inline T expm1(T x) {
  using F = Format<T>;
  const Reduced<T> r(clamped<T>(x, is_single<T> ? -18 : -38, is_single<T> ? 89 : 710));
  const T scale = power_of_two<T>(r.twice_biased - F::bias - 1), most = scale - T(0.5);
  const T small = multiply_add(r.high * r.high, exp_series(r.high), r.rest);
  const T step = scale * r.high, sum = most + step, lost = step - (sum - most);
  const T y = 2 * (sum + multiply_add(scale, small, lost));
  return choose(magnitude(x) < T(1e-30), x, y);  // also -0, and numbers that 2^-1 would round
}

/// 1 / (1 + e^-x) is, from here on, 0, or times x no more than the least number; and 1.
template <class T>
inline constexpr T sigmoid_0 = is_single<T> ? -110 : -752;
template <class T>
inline constexpr T sigmoid_1 = is_single<T> ? 20 : 40;

/// y / (1 + e^-(x + low)), for a small `low`.
template <class T>
LOCKSTEP_HOST_DEVICE inline T sigmoid_times(T y, T x, T low = 0) {
  return exponential(-clamped(x, sigmoid_0<T>, sigmoid_1<T>), -low).divide_by_one_more(y);
}
template <class T>
LOCKSTEP_HOST_DEVICE inline T sigmoid(T x) {
  return sigmoid_times(T(1), x);
}
/// x / (1 + e^-x): 0 at -infinity.
template <class T>
LOCKSTEP_HOST_DEVICE inline T silu(T x) {
  const T within = clamped(x, sigmoid_0<T>, sigmoid_1<T>);
  return choose(x > within, x, sigmoid_times(within, within));
}

/// Its derivative.
template <class T>
LOCKSTEP_HOST_DEVICE inline T silu_slope(T x) {
  const T within = clamped(x, sigmoid_0<T>, -sigmoid_0<T>), s = sigmoid(x);
  return s * multiply_add(within, 1 - s, T(1));
}

/// (e^x - e^-x) / (e^x + e^-x): x + x^3 P(x^2) for a small x, else 1 - 2 / (e^2x + 1).
LOCKSTEP_HOST_DEVICE inline float tanh(float x) {
  const float size = magnitude(x), within = choose(size > 10, 10.0f, size), z = x * x;
  const auto e = exponential(2 * within);
  const float far =
      1 - 2 / (multiply_add(1 + e.fraction, power_of_two<float>(e.twice_biased - 127), 1.0f));
  const float near = multiply_add(size * z,
                                  polynomial(z, 0.002141963f, -0.008176343f, 0.021700291f,
                                             -0.053946692f, 0.13333206f, -0.3333333f),
                                  size);
  return with_sign_of(x, choose(size < 0.625f, near, far));
}
LOCKSTEP_HOST_DEVICE inline double tanh(double x) { return std::tanh(x); }

// Logarithms.

/// (2 atanh(s) - 2 s) / s as a polynomial in z = s^2, for s <= 0.1716.
LOCKSTEP_HOST_DEVICE inline float log_series(float z) {
  return z * polynomial(z, 0.23582758f, 0.2853728f, 0.40000334f, 0.6666666f);
}
LOCKSTEP_HOST_DEVICE inline double log_series(double z) {
  return z * polynomial(z, 0.14796621798991222, 0.15313987024044587, 0.18183566660488365,
                        0.22222198531270707, 0.2857142874276514, 0.3999999999941313,
                        0.6666666666666735);
}

/// log(1 + f) + n log(2) for 1 + f between sqrt(1/2) and sqrt(2): log(1 + f) = 2 atanh(s) with s =
/// f / (2 + f), which is f - (f^2 / 2 - s (f^2 / 2 + ...)), where the first term has no error.
template <class T>
LOCKSTEP_HOST_DEVICE inline T log_of_parts(T f, T n) {
  using F = Format<T>;
  const T s = f / (2 + f), h = T(0.5) * f * f;
  const T correction = multiply_add(s, h + log_series(s * s), n * F::ln2_low);
  return multiply_add(n, F::ln2_high, f - (h - correction));
}

/// u > 0 as 2^n m with m from sqrt(1/2) to sqrt(2); u is normal.
template <class T>
struct Split {
  Bits<T> biased;    ///< n + bias
  Bits<T> fraction;  ///< the bits of m

  LOCKSTEP_HOST_DEVICE explicit Split(T u) {
    const Bits<T> sqrt_half = bits_of(T(0.70710678118654752440));
    const Bits<T> from_sqrt_half =
        bits_of(u) + (Format<T>::bias << Format<T>::fraction_bits) - sqrt_half;
    biased = from_sqrt_half >> Format<T>::fraction_bits;
    fraction = bits_of(u) + ((Format<T>::bias - biased) << Format<T>::fraction_bits);
  }
  /// n, as a number.
  LOCKSTEP_HOST_DEVICE T n() const {
    const T two_to_fraction_bits = Format<T>::two_to_fraction_bits;
    return of_bits<T>(biased | bits_of(two_to_fraction_bits)) -
           (two_to_fraction_bits + static_cast<T>(Format<T>::bias));
  }
};

/// What a logarithm is where there is none: `y` is it elsewhere, and `distance` from -infinity.
template <class T>
LOCKSTEP_HOST_DEVICE inline T log_at_edges(T distance, T y) {
  const T below = choose(distance == 0, -infinity<T>, std::numeric_limits<T>::quiet_NaN());
  return choose(distance > 0, choose(distance == infinity<T>, distance, y), below);
}

/// log(x).
template <class T>
LOCKSTEP_HOST_DEVICE inline T log(T x) {
  using F = Format<T>;
  const bool subnormal = x < std::numeric_limits<T>::min();
  const Split<T> u(choose(subnormal, x * F::two_to_fraction_bits, x));
  const T n = u.n() - choose(subnormal, T(F::fraction_bits), T(0));
  return log_at_edges(x, log_of_parts(of_bits<T>(u.fraction) - 1, n));
}

/// log(1 + x) = log(1 + f) + n log(2) with 1 + f = 2^-n + 2^-n x, which loses nothing of a small x.
template <class T>
LOCKSTEP_HOST_DEVICE inline T log1p(T x) {
  using F = Format<T>;
  const bool large = x > T(1e36);  // the 1 is then nothing, and 2^-n may be too small
  const T within = choose(large, x * T(0x1p-64), x);
  const Split<T> u(1 + within);
  const T scale = power_of_two<T>(2 * F::bias - u.biased);
  const T f = multiply_add(within, scale, scale - 1), n = u.n() + choose(large, T(64), T(0));
  return choose(magnitude(x) < T(1e-30), x, log_at_edges(1 + x, log_of_parts(f, n)));
}

/// log(1 + e^x).
template <class T>
LOCKSTEP_HOST_DEVICE inline T softplus(T x) {
  const T linear = is_single<T> ? 16 : 37;  // from here on it is x
  const T y = log1p(exp(choose(x > linear, linear, x)));
  return choose(x > linear, x, y);
}

// Sines and cosines.

/// Up to here they are computed without branches.
template <class T>
inline constexpr T largest_angle = is_single<T> ? T(1000000) : std::numeric_limits<T>::infinity();

/// sin(x + quarters pi / 2) for |x| <= largest_angle. f32 in f64: what is left of x after multiples
/// of pi / 2, a constant of three parts, the first two of 33 bits, so that the product with a whole
/// number has no error.
LOCKSTEP_HOST_DEVICE inline float sine_of_small(float x, unsigned quarters) {
  using F = Format<double>;
  const double wide = x;
  const double shifted = wide * 0.63661977236758134308 + F::round_to_integer;
  const double n = shifted - F::round_to_integer;
  const double r =
      ((wide - n * 0x1.921fb544p+0) - n * 0x1.0b4611a6p-34) - n * 0x1.3198a2e037073p-69;
  const std::uint64_t quadrant = bits_of(shifted) + quarters;
  const double z = r * r;
  const double sine =
      r * multiply_add(z,
                       polynomial(z, 2.7183089918137238e-06, -0.00019839334578777092,
                                  0.008333329385106458, -0.1666666664161993),
                       1.0);
  const double cosine = polynomial(z, -2.7210212509096026e-07, 2.479951970860253e-05,
                                   -0.0013888883752293773, 0.041666666622815304, -0.5, 1.0);
  const double y = choose((quadrant & 1) != 0, cosine, sine);
  return static_cast<float>(of_bits<double>(bits_of(y) ^ ((quadrant & 2) << 62)));
}
LOCKSTEP_HOST_DEVICE inline double sine_of_small(double x, unsigned quarters) {
  return quarters == 1 ? std::cos(x) : quarters == 0 ? std::sin(x) : -std::sin(x);
}
/// The same for every x. Larger ones are left to the library.
template <class T>
LOCKSTEP_HOST_DEVICE inline T sine(T x, unsigned quarters) {
  if (magnitude(x) <= largest_angle<T>) return sine_of_small(x, quarters);
  return quarters == 1 ? std::cos(x) : quarters == 0 ? std::sin(x) : -std::sin(x);
}

}  // namespace lockstep::kernels::elementary
