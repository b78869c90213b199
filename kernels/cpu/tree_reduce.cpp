#include "lockstep/kernels/tree_reduce.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "lockstep/core/compiler.h"
#include "lockstep/kernels/cpu/backend.h"

namespace lockstep::kernels {

namespace {

// Elements folded at a time: partial sums of a few levels stay in the first-level cache.
constexpr std::int64_t block = 1024;

// In which elements are added up.
template <class T>
using Sum = std::conditional_t<std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>, float, T>;

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

// Pointers are equal or far apart: no element depends on an earlier one.
template <class T>
void add_to(const T* a, const T* b, T* sum, std::int64_t count) {
  LOCKSTEP_IVDEP
  for (std::int64_t i = 0; i < count; ++i) sum[i] = add(a[i], b[i]);
}

// The hot case, two ranks in shared memory: both contributions are read once and both overwritten.
template <class T>
void add_to_both(const T* a, const T* b, T* first, T* second, std::int64_t count) {
  LOCKSTEP_IVDEP
  for (std::int64_t i = 0; i < count; ++i) {
    const T sum = add(a[i], b[i]);
    first[i] = sum;
    second[i] = sum;
  }
}

// The tree over `sources`, elements [begin, begin + count), of which there are at most `block`: in
// `room`, unless a single source can be read where it lies.
template <class T>
const Sum<T>* tree(std::span<const std::byte* const> sources, std::int64_t begin,
                   std::int64_t count, Sum<T>* room) {
  if (sources.size() == 1) {
    const T* source = at<T>(sources[0], begin);
    if constexpr (std::is_same_v<T, Sum<T>>)
      return source;
    else
      std::transform(source, source + count, room, [](T x) { return static_cast<float>(x); });
    return room;
  }
  const std::size_t left = std::bit_floor(sources.size() - 1);
  Sum<T> other[block];
  const Sum<T>* a = tree<T>(sources.first(left), begin, count, room);
  const Sum<T>* b = tree<T>(sources.subspan(left), begin, count, other);
  add_to(a, b, room, count);
  return room;
}

template <class T>
void fold_typed(std::span<const std::byte* const> sources, std::span<std::byte* const> destinations,
                std::int64_t count) {
  const auto out = [&](std::size_t k, std::int64_t begin) {
    return reinterpret_cast<T*>(destinations[k]) + begin;
  };
  if constexpr (std::is_same_v<T, Sum<T>>) {
    if (sources.size() == 2 && destinations.size() == 1)
      return add_to(at<T>(sources[0], 0), at<T>(sources[1], 0), out(0, 0), count);
    if (sources.size() == 2 && destinations.size() == 2)
      return add_to_both(at<T>(sources[0], 0), at<T>(sources[1], 0), out(0, 0), out(1, 0), count);
  }
  Sum<T> room[block];
  for (std::int64_t begin = 0; begin < count; begin += block) {
    const std::int64_t here = std::min(block, count - begin);
    const Sum<T>* sum = tree<T>(sources, begin, here, room);
    for (std::size_t k = 0; k < destinations.size(); ++k) {
      if constexpr (std::is_same_v<T, Sum<T>>)
        std::memmove(out(k, begin), sum, static_cast<std::size_t>(here) * sizeof(T));
      else
        std::transform(sum, sum + here, out(k, begin), [](float x) { return T(x); });
    }
  }
}

}  // namespace

void CpuBackend::tree_reduce(DType dtype, std::span<const std::byte* const> sources,
                             std::span<std::byte* const> destinations, std::int64_t count, Device) {
  switch (dtype) {
    case DType::f32: return fold_typed<float>(sources, destinations, count);
    case DType::f64: return fold_typed<double>(sources, destinations, count);
    case DType::i64: return fold_typed<std::int64_t>(sources, destinations, count);
    case DType::i32: return fold_typed<std::int32_t>(sources, destinations, count);
    case DType::f16: return fold_typed<Half>(sources, destinations, count);
    case DType::bf16: return fold_typed<BFloat16>(sources, destinations, count);
    case DType::u8: break;
  }
  fail<DTypeError>("[tree_reduce] takes floating elements, i32 or i64, got {}", dtype);
}

}  // namespace lockstep::kernels
