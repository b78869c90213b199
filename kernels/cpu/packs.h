#pragma once
/// Packs: vectors of a fixed number of elements. Whatever is computed through them takes the same
/// vector instructions for every element: the rest after the last full pack is copied into a padded
/// one.

#include <Eigen/Core>
#include <algorithm>
#include <cstdint>

#include "lockstep/core/compiler.h"
#include "lockstep/kernels/formulas/elementary.h"

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

/// e^x, element by element.
template <class T, int size>
LOCKSTEP_ALWAYS_INLINE Pack<T, size> exponential(const Pack<T, size>& x) {
  Pack<T, size> y;
  for (int i = 0; i < size; ++i) y[i] = elementary::exp(x[i]);
  return y;
}

}  // namespace lockstep::kernels
