#pragma once
/// PTX's cp.async. What such a copy writes appears when the thread waits for its group, not before:
/// until then its destination holds a NaN pattern. So a kernel that reads a tile without waiting,
/// or that waits for too few groups, computes NaN here, as it may compute anything on a GPU.

#include <cstddef>

namespace simt::detail {

// By the running thread (execution/async_copy.cpp).
void start_copy(void* shared, const void* global, std::size_t bytes, bool valid);
void commit_copies();
void wait_for_copies(std::size_t unfinished);

}  // namespace simt::detail

// Always inlined, so that what calls the simulator is the kernel: reports name its line.
#define SIMT_INLINE __attribute__((always_inline)) inline

SIMT_INLINE void cp_async_16(void* shared, const void* global, bool valid) {
  simt::detail::start_copy(shared, global, 16, valid);
}

SIMT_INLINE void cp_async_4(void* shared, const void* global, bool valid) {
  simt::detail::start_copy(shared, global, 4, valid);
}

inline void cp_async_commit() { simt::detail::commit_copies(); }

template <int unfinished>
SIMT_INLINE void cp_async_wait() {
  simt::detail::wait_for_copies(unfinished);
}

#undef SIMT_INLINE
