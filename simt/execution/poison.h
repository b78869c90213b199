#pragma once
/// Memory that exists and may not be touched: AddressSanitizer's, where it is on.

#include <cstddef>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace simt::detail {

#ifdef __SANITIZE_ADDRESS__
inline void poison(const void* data, std::size_t bytes) { ASAN_POISON_MEMORY_REGION(data, bytes); }
inline void unpoison(const void* data, std::size_t bytes) {
  ASAN_UNPOISON_MEMORY_REGION(data, bytes);
}
#else
inline void poison(const void*, std::size_t) {}
inline void unpoison(const void*, std::size_t) {}
#endif

}  // namespace simt::detail
