#include "lockstep/kernels/fold.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "lockstep/kernels/cpu/backend.h"

namespace lockstep::kernels {

namespace {

// Elements folded at a time: partial sums of a few levels stay in the first-level cache.
constexpr std::int64_t block = 1024;

// Signed overflow is undefined in C++; through unsigned it wraps.
template <class T>
T add(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  } else {
    return a + b;
  }
}

template <class T>
const T* at(const std::byte* source, std::int64_t begin) {
  return reinterpret_cast<const T*>(source) + begin;
}

// Pointers are equal or far apart: no element depends on an earlier one (ivdep).
template <class T>
void add_to(const T* a, const T* b, T* sum, std::int64_t count) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < count; ++i) sum[i] = add(a[i], b[i]);
}

// The hot case, two ranks in shared memory: both contributions are read once and both overwritten.
template <class T>
void add_to_both(const T* a, const T* b, T* first, T* second, std::int64_t count) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < count; ++i) {
    const T sum = add(a[i], b[i]);
    first[i] = sum;
    second[i] = sum;
  }
}

// sum := the tree over `sources`, elements [begin, begin + count), of which there are at most
// `block`.
template <class T>
void tree(std::span<const std::byte* const> sources, std::int64_t begin, std::int64_t count,
          T* sum) {
  const std::size_t left = std::bit_floor(sources.size() - 1);
  const T* a = at<T>(sources[0], begin);
  if (left > 1) {
    tree(sources.first(left), begin, count, sum);
    a = sum;
  }
  if (sources.size() - left == 1) {
    add_to(a, at<T>(sources[left], begin), sum, count);
    return;
  }
  T right[block];
  tree(sources.subspan(left), begin, count, right);
  add_to(a, right, sum, count);
}

template <class T>
void fold_typed(std::span<const std::byte* const> sources, std::span<std::byte* const> destinations,
                std::int64_t count) {
  const auto out = [&](std::size_t k, std::int64_t begin) {
    return reinterpret_cast<T*>(destinations[k]) + begin;
  };
  if (sources.size() == 2 && destinations.size() == 1) {
    return add_to(at<T>(sources[0], 0), at<T>(sources[1], 0), out(0, 0), count);
  }
  if (sources.size() == 2 && destinations.size() == 2) {
    return add_to_both(at<T>(sources[0], 0), at<T>(sources[1], 0), out(0, 0), out(1, 0), count);
  }
  T sum[block];
  for (std::int64_t begin = 0; begin < count; begin += block) {
    const std::int64_t here = std::min(block, count - begin);
    const T* result = at<T>(sources[0], begin);
    if (sources.size() > 1) {
      tree(sources, begin, here, sum);
      result = sum;
    }
    for (std::size_t k = 0; k < destinations.size(); ++k) {
      std::memmove(out(k, begin), result, static_cast<std::size_t>(here) * sizeof(T));
    }
  }
}

}  // namespace

void CpuBackend::fold(DType dtype, std::span<const std::byte* const> sources,
                      std::span<std::byte* const> destinations, std::int64_t count, Device) {
  switch (dtype) {
    case DType::f32: return fold_typed<float>(sources, destinations, count);
    case DType::f64: return fold_typed<double>(sources, destinations, count);
    case DType::i64: return fold_typed<std::int64_t>(sources, destinations, count);
    case DType::i32: return fold_typed<std::int32_t>(sources, destinations, count);
    default: break;
  }
  fail<DTypeError>("[fold] takes f32, f64, i32 or i64, got {}", dtype);
}

}  // namespace lockstep::kernels
