#pragma once
/// Atomics and fences. One thread of one block runs at a time, and switches only where threads
/// meet: plain accesses are atomic, and every fence holds.

#include <type_traits>

#include "warp.h"

namespace simt::detail {

/// The types that CUDA's atomics take, and only those.
template <class T>
concept AtomicInteger =
    std::is_same_v<T, int> || std::is_same_v<T, unsigned> || std::is_same_v<T, unsigned long long>;
template <class T>
concept AtomicNumber = AtomicInteger<T> || std::is_same_v<T, float> || std::is_same_v<T, double>;

template <class T>
T replace(T* address, T value) {
  const T old = *address;
  *address = value;
  return old;
}

}  // namespace simt::detail

// Each returns the old value. The second parameter converts to the type of the first.

template <simt::detail::AtomicNumber T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  return simt::detail::replace(address, static_cast<T>(*address + value));
}
template <simt::detail::AtomicInteger T>
T atomicSub(T* address, std::type_identity_t<T> value) {
  return simt::detail::replace(address, static_cast<T>(*address - value));
}
template <simt::detail::AtomicInteger T>
T atomicMax(T* address, std::type_identity_t<T> value) {
  return simt::detail::replace(address, *address < value ? value : *address);
}
template <simt::detail::AtomicInteger T>
T atomicMin(T* address, std::type_identity_t<T> value) {
  return simt::detail::replace(address, value < *address ? value : *address);
}
template <simt::detail::AtomicInteger T>
T atomicOr(T* address, std::type_identity_t<T> value) {
  return simt::detail::replace(address, static_cast<T>(*address | value));
}
template <simt::detail::AtomicInteger T>
T atomicAnd(T* address, std::type_identity_t<T> value) {
  return simt::detail::replace(address, static_cast<T>(*address & value));
}
template <simt::detail::AtomicInteger T>
T atomicXor(T* address, std::type_identity_t<T> value) {
  return simt::detail::replace(address, static_cast<T>(*address ^ value));
}
template <class T>
requires simt::detail::AtomicInteger<T> || std::is_same_v<T, float> T
atomicExch(T* address, std::type_identity_t<T> value) {
  return simt::detail::replace(address, value);
}
template <simt::detail::AtomicInteger T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  return simt::detail::replace(address, *address == expected ? value : *address);
}
/// Counts 0, 1, ..., limit, 0, ...
inline unsigned atomicInc(unsigned* address, unsigned limit) {
  return simt::detail::replace(address, *address >= limit ? 0u : *address + 1);
}

inline void __threadfence() { simt::detail::compiler_fence(); }
inline void __threadfence_block() { simt::detail::compiler_fence(); }
inline void __threadfence_system() { simt::detail::compiler_fence(); }
