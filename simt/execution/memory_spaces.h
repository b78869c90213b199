#pragma once
/// Which of CUDA's memory spaces an address of the running kernel is in.

#include <cstddef>

namespace simt::detail {

/// Of the running thread's block: dynamic, or a variable of the program, as static one is.
bool in_shared_memory(const void* data, std::size_t bytes);

/// Memory that the runtime knows, or a variable of the program that is not __shared__.
bool in_global_memory(const void* data, std::size_t bytes);

}  // namespace simt::detail
