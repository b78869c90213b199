#pragma once
/// Vectors of a fixed number of elements. Whatever is computed through them takes the same vector
/// instructions for every element: the rest after the last full vector is copied into a padded one.

#include <Eigen/Core>
#include <algorithm>
#include <cstdint>
#include <unsupported/Eigen/SpecialFunctions>  // erf

#include "lockstep/kernels/formulas/functors.h"

namespace lockstep::kernels {

inline constexpr std::int64_t lanes = 16;

template <class T, int size = lanes>
using Lanes = Eigen::Array<T, size, 1>;

template <class T, int size = lanes>
Lanes<T, size> load(const T* x) {
  return Eigen::Map<const Lanes<T, size>>(x);  // no alignment is assumed
}

/// The first n elements from memory, the others `padding`.
template <class T, int size = lanes>
Lanes<T, size> load_first(const T* x, std::int64_t n, T padding = 0) {
  Lanes<T, size> result;
  for (int i = 0; i < size; ++i) result[i] = i < n ? x[i] : padding;
  return result;
}

template <class T, int size>
void store(T* out, const Lanes<T, size>& values) {
  Eigen::Map<Lanes<T, size>>{out} = values;
}

template <class T, int size>
void store_first(T* out, std::int64_t n, const Lanes<T, size>& values) {
  for (int i = 0; i < size; ++i)
    if (i < n) out[i] = values[i];
}

/// All lanes in one value, by halves: combine(combine(...), combine(...)).
template <class T, int size, class F>
T fold(const Lanes<T, size>& values, F combine) {
  if constexpr (size == 1) {
    return values[0];
  } else {
    constexpr int half = size / 2;
    const Lanes<T, half> left = values.template head<half>(), right = values.template tail<half>();
    return fold<T, half>(combine(left, right), combine);
  }
}

/// The sum of all lanes.
template <class T, int size>
T fold(const Lanes<T, size>& values) {
  return fold<T, size>(values, [](const auto& a, const auto& b) { return (a + b).eval(); });
}

/// f of both halves. Eigen's functions take other polynomials in vectors of 16 floats than in those
/// of 8. Of 8 there are vectors with AVX2 and with AVX-512, so that both have the same bits.
template <class T, int size, class F>
Lanes<T, size> by_halves(const Lanes<T, size>& x, const F& f) {
  constexpr int half = size / 2;
  Lanes<T, size> y;
  y.template head<half>() = f(Lanes<T, half>(x.template head<half>()));
  y.template tail<half>() = f(Lanes<T, half>(x.template tail<half>()));
  return y;
}

/// exp, down to 0. (Eigen's of f64 ends at exp(-709.8), also for -infinity; below -708 the results
/// have fewer bits than others anyway.)
template <class T, int size>
Lanes<T, size> exponential(const Lanes<T, size>& x) {
  if constexpr (size > 8)
    return by_halves<T, size>(x, [](const auto& half) { return exponential(half); });
  Lanes<T, size> y = e_to(x);
  if constexpr (sizeof(T) == 8)
    if ((x < -708).any()) y = (x < -708).select((x * 0.5).exp().square(), y);
  return y;
}

/// out_i = f(x_i), 16 at a time.
template <class T, class F>
void map_lanes(const T* x, T* out, std::int64_t n, F&& f) {
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) store<T, lanes>(out + i, f(load(x + i)));
  if (i < n) store_first<T, lanes>(out + i, n - i, f(load_first(x + i, n - i)));
}

}  // namespace lockstep::kernels
