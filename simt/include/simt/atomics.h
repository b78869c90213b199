#pragma once
/// Atomics and fences. One thread of one block runs at a time, and switches only where threads
/// meet: plain accesses are atomic, and every fence holds. A build that watches accesses
/// (races/races.h) is told which of them are atomics.

#include <cstddef>
#include <type_traits>

#include "language.h"
#include "warp.h"

namespace simt::detail {

/// The types that CUDA's atomics take, and only those.
template <class T>
concept AtomicInteger =
    std::is_same_v<T, int> || std::is_same_v<T, unsigned> || std::is_same_v<T, unsigned long long>;
template <class T>
concept AtomicNumber = AtomicInteger<T> || std::is_same_v<T, float> || std::is_same_v<T, double>;

/// The running thread accesses these bytes at once, in a function that returns to `caller`.
void atomic_access(const void* address, std::size_t bytes, const void* caller);

/// Not to be watched, for it is no two accesses; and not inlined, for its caller's sake.
template <class T, class Function>
__attribute__((noinline, no_sanitize("thread"))) T replace(T* address, const Function& new_value) {
  atomic_access(address, sizeof(T), __builtin_return_address(0));
  const T old = *address;
  *address = new_value(old);
  return old;
}

}  // namespace simt::detail

// Each returns the old value. The second parameter converts to the type of the first. Always
// inlined: what calls replace() is the kernel, whose line reports name.

template <simt::detail::AtomicNumber T>
__forceinline__ T atomicAdd(T* address, std::type_identity_t<T> value) {
  return simt::detail::replace(address, [&](T old) { return static_cast<T>(old + value); });
}
template <simt::detail::AtomicInteger T>
__forceinline__ T atomicSub(T* address, std::type_identity_t<T> value) {
  return simt::detail::replace(address, [&](T old) { return static_cast<T>(old - value); });
}
template <simt::detail::AtomicInteger T>
__forceinline__ T atomicMax(T* address, std::type_identity_t<T> value) {
  return simt::detail::replace(address, [&](T old) { return old < value ? value : old; });
}
template <simt::detail::AtomicInteger T>
__forceinline__ T atomicMin(T* address, std::type_identity_t<T> value) {
  return simt::detail::replace(address, [&](T old) { return value < old ? value : old; });
}
template <simt::detail::AtomicInteger T>
__forceinline__ T atomicOr(T* address, std::type_identity_t<T> value) {
  return simt::detail::replace(address, [&](T old) { return static_cast<T>(old | value); });
}
template <simt::detail::AtomicInteger T>
__forceinline__ T atomicAnd(T* address, std::type_identity_t<T> value) {
  return simt::detail::replace(address, [&](T old) { return static_cast<T>(old & value); });
}
template <simt::detail::AtomicInteger T>
__forceinline__ T atomicXor(T* address, std::type_identity_t<T> value) {
  return simt::detail::replace(address, [&](T old) { return static_cast<T>(old ^ value); });
}
template <class T>
requires simt::detail::AtomicInteger<T> || std::is_same_v<T, float> __forceinline__ T
atomicExch(T* address, std::type_identity_t<T> value) {
  return simt::detail::replace(address, [&](T) { return value; });
}
template <simt::detail::AtomicInteger T>
__forceinline__ T atomicCAS(T* address, std::type_identity_t<T> expected,
                            std::type_identity_t<T> value) {
  return simt::detail::replace(address, [&](T old) { return old == expected ? value : old; });
}
/// Counts 0, 1, ..., limit, 0, ...
__forceinline__ unsigned atomicInc(unsigned* address, unsigned limit) {
  return simt::detail::replace(address, [&](unsigned old) { return old >= limit ? 0u : old + 1; });
}

inline void __threadfence() { simt::detail::compiler_fence(); }
inline void __threadfence_block() { simt::detail::compiler_fence(); }
inline void __threadfence_system() { simt::detail::compiler_fence(); }
