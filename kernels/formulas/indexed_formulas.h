#pragma once
/// What indexed.h computes, element by element. A formula is an object with an operator()(i); a
/// backend's loop calls it for every i below a number, in any order.

#include <cstdint>
#include <type_traits>

#include "lockstep/core/compiler.h"
#include "lockstep/kernels/broadcast.h"
#include "lockstep/kernels/formulas/functors.h"
#include "lockstep/kernels/indexed.h"

namespace lockstep::kernels {

/// A formula of two operands has a plan, too, and an operator()(i, place of a, place of b): a loop
/// over rows does without the plan's divisions.

/// Of integers, and comparisons; floating numbers have other kernels (elementwise.h).
template <class T, class Op, class Out = T>
struct CombineElements {
  const T *a, *b;
  StridePlan plan;
  Out* out;
  LOCKSTEP_HOST_DEVICE void operator()(std::int64_t i, std::int64_t of_a, std::int64_t of_b) const {
    out[i] = Op{}(a[of_a], b[of_b]);
  }
};

template <class To, class From>
struct ConvertElements {
  const From* x;
  To* out;
  LOCKSTEP_HOST_DEVICE void operator()(std::int64_t i) const { out[i] = static_cast<To>(x[i]); }
};

template <class Word>
struct MaskedCopyElements {
  const std::uint8_t* mask;
  const Word* x;
  StridePlan plan;  // of the mask and of x
  Word* out;
  LOCKSTEP_HOST_DEVICE void operator()(std::int64_t i, std::int64_t of_mask,
                                       std::int64_t of_x) const {
    out[i] = mask[of_mask] ? x[of_x] : out[i];
  }
};

template <class T, bool accumulate>
struct WindowElements {
  const T* x;
  StridePlan plan;  // from and to
  T* out;
  LOCKSTEP_HOST_DEVICE void operator()(std::int64_t, std::int64_t from, std::int64_t to) const {
    if constexpr (accumulate)
      out[to] += x[from];
    else
      out[to] = x[from];
  }
};

/// The k-th index for the element (o, j) of the dimensions around the indexed one.
struct Indices {
  Taken what;
  const std::int64_t* index;
  unsigned long long* fault;  // where a GPU complains (core/cuda/stream.h); else all were checked
  LOCKSTEP_HOST_DEVICE std::int64_t at(std::int64_t o, std::int64_t k, std::int64_t j) const {
    const std::int64_t i = what.each ? index[(o * what.count + k) * what.inner + j] : index[k];
    if (i >= 0 && i < what.n) return i;
    if (fault)  // volatile: several threads may write, each a whole word
      *static_cast<volatile unsigned long long*>(fault) =
          (1ull << 31 | (static_cast<unsigned long long>(what.n) & 0x7fffffffu)) << 32 |
          (static_cast<unsigned long long>(i) & 0xffffffffu);
    return 0;
  }
};

template <class Word>
struct TakeElements {
  Indices indices;
  const Word* x;
  Word* out;
  LOCKSTEP_HOST_DEVICE void operator()(std::int64_t i) const {
    const Taken& t = indices.what;
    const std::int64_t row = i / t.inner, j = i - row * t.inner;
    const std::int64_t o = row / t.count, k = row - o * t.count;
    out[i] = x[(o * t.n + indices.at(o, k, j)) * t.inner + j];
  }
};

/// For one (o, j): the terms of an element are added in their order, on every device.
template <class T>
struct AddTakenColumns {
  Indices indices;
  const T* dy;
  T* dx;
  LOCKSTEP_HOST_DEVICE void operator()(std::int64_t i) const {
    const Taken& t = indices.what;
    const std::int64_t o = i / t.inner, j = i - o * t.inner;
    for (std::int64_t k = 0; k < t.count; ++k)
      dx[(o * t.n + indices.at(o, k, j)) * t.inner + j] += dy[(o * t.count + k) * t.inner + j];
  }
};

/// For one (outer, inner). f32 is added up in f64.
template <class T>
struct CumulativeSumColumns {
  using Sum = std::conditional_t<std::is_same_v<T, float>, double, T>;
  std::int64_t n, inner;
  bool reverse;
  const T* x;
  T* out;
  LOCKSTEP_HOST_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t o = i / inner, first = o * n * inner + (i - o * inner);
    Sum sum = 0;
    for (std::int64_t k = 0; k < n; ++k) {
      const std::int64_t at = first + (reverse ? n - 1 - k : k) * inner;
      sum = Add{}(sum, static_cast<Sum>(x[at]));
      out[at] = static_cast<T>(sum);
    }
  }
};

}  // namespace lockstep::kernels
