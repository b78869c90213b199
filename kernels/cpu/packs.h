#pragma once
/// Packs: vectors of a fixed number of elements. Whatever is computed through them takes the same
/// vector instructions for every element: the rest after the last full pack is copied into a padded
/// one.

#include <Eigen/Core>
#include <algorithm>
#include <cstdint>
#include <unsupported/Eigen/SpecialFunctions>  // erf

#include "lockstep/kernels/formulas/functors.h"

namespace lockstep::kernels {

inline constexpr std::int64_t pack_size = 16;

template <class T, int size = pack_size>
using Pack = Eigen::Array<T, size, 1>;

template <class T, int size = pack_size>
Pack<T, size> load(const T* x) {
  return Eigen::Map<const Pack<T, size>>(x);  // no alignment is assumed
}

/// The first n elements from memory, the others `padding`.
template <class T, int size = pack_size>
Pack<T, size> load_first(const T* x, std::int64_t n, T padding = 0) {
  Pack<T, size> result;
  for (int i = 0; i < size; ++i) result[i] = i < n ? x[i] : padding;
  return result;
}

template <class T, int size>
void store(T* out, const Pack<T, size>& values) {
  Eigen::Map<Pack<T, size>>{out} = values;
}

template <class T, int size>
void store_first(T* out, std::int64_t n, const Pack<T, size>& values) {
  for (int i = 0; i < size; ++i)
    if (i < n) out[i] = values[i];
}

/// All elements in one value, by halves: combine(combine(...), combine(...)).
template <class T, int size, class F>
T fold(const Pack<T, size>& values, F combine) {
  if constexpr (size == 1) {
    return values[0];
  } else {
    constexpr int half = size / 2;
    const Pack<T, half> left = values.template head<half>(), right = values.template tail<half>();
    return fold<T, half>(combine(left, right), combine);
  }
}

/// The sum of all elements.
template <class T, int size>
T fold(const Pack<T, size>& values) {
  return fold<T, size>(values, [](const auto& a, const auto& b) { return (a + b).eval(); });
}

/// f(x...) of both halves. Eigen's functions take other polynomials in vectors of 16 floats than in
/// those of 8. Vectors of 8 are there with AVX2 and with AVX-512, so that both have the same bits.
template <class T, int size, class F, class... X>
Pack<T, size> by_halves(const F& f, const X&... x) {
  constexpr int half = size / 2;
  Pack<T, size> y;
  y.template head<half>() = f(Pack<T, half>(x.template head<half>())...);
  y.template tail<half>() = f(Pack<T, half>(x.template tail<half>())...);
  return y;
}

/// exp, down to 0. (Eigen's of f64 ends at exp(-709.8), also for -infinity; below -708 the results
/// have fewer bits than others anyway.)
template <class T, int size>
Pack<T, size> exponential(const Pack<T, size>& x) {
  if constexpr (size > 8)
    return by_halves<T, size>([](const auto& half) { return exponential(half); }, x);
  Pack<T, size> y = e_to(x);
  if constexpr (sizeof(T) == 8)
    if ((x < -708).any()) y = (x < -708).select((x * 0.5).exp().square(), y);
  return y;
}

/// out_i = f(x_i), 16 at a time.
template <class T, class F>
void map_packs(const T* x, T* out, std::int64_t n, F&& f) {
  std::int64_t i = 0;
  for (; i + pack_size <= n; i += pack_size) store<T, pack_size>(out + i, f(load(x + i)));
  if (i < n) store_first<T, pack_size>(out + i, n - i, f(load_first(x + i, n - i)));
}

}  // namespace lockstep::kernels
