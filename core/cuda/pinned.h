#pragma once
/// Page-locked memory that is used again.
///
/// To free it may wait for all work of the process's GPUs, and so for a stream that waits for the
/// very rank that frees it; to make it may, too, by older documents. So no memory is ever given
/// back to CUDA before the process ends, and a rank that ends something needs nothing new for what
/// comes next.
///
/// Thread-safe. Source: CUDA C++ Programming Guide 12, "Implicit Synchronization"; CUDA Runtime
/// API, cudaFreeHost. PyTorch keeps such memory for the same reason (CachingHostAllocator).

#include <cuda_runtime.h>

#include <cstddef>

namespace lockstep::cuda {

/// At least so many bytes, with any content. No GPU may use it any more when it is given back with
/// keep_pinned. Throws DeviceError.
void* take_pinned(const char* operation, std::size_t bytes);
cudaError_t keep_pinned(void* data);
/// The same, as soon as the stream has done all that it was given before. Not in a capture.
void keep_pinned_after(const char* operation, void* data, cudaStream_t stream);
/// Whether such a block begins there.
bool is_pinned(const void* data);

}  // namespace lockstep::cuda
